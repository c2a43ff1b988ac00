# Identity of this program, as `waypost artefact sign` gets it, and the keys of its maker.
firmware_name=pump
firmware_version=1.0.0
firmware_sequence=1 # rises with every version
firmware_board=shell
# Public keys of the maker in PEM, one behind the other. Without a key no image is accepted.
maker_keys='
'
