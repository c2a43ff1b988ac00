package main

// Identity of this program, as `waypost artefact sign` gets it, and the keys of its maker.
const (
	firmwareName     = "pump"
	firmwareVersion  = "1.0.0"
	firmwareSequence = 1 // rises with every version
	firmwareBoard    = "go"
	// Public keys of the maker in PEM, one behind the other. Without a key no image is accepted.
	makerKeys = `
`
)
