package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"encoding/hex"
	"encoding/pem"
	"math/big"
	"regexp"
	"unicode/utf8"
)

const (
	envelopeBytesMax = 16 << 10
	imageBytesMax    = 64 << 20
	manifestType     = "application/vnd.waypost.artefact+cbor"
	algorithmEd25519 = -8
	algorithmES256   = -7
	depthMax         = 8
)

var versionPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.+_-]{0,63}$`)

// Refused says why the new version is refused: a reason of docs/how-to/update-devices.md.
type Refused string

func (r Refused) Error() string { return string(r) }

// Manifest is the verified statement of the maker about an image.
type Manifest struct {
	Version, SHA256 string
	Sequence, Size  int64
}

// cborTag is a tagged item; cborMap has the items of a map by their key.
type (
	cborTag struct {
		tag  int64
		item any
	}
	cborMap map[any]any
)

// cborReader decodes the deterministic encoding (RFC 8949, 4.2.1) as far as manifests have it. It panics with Refused.
type cborReader struct {
	rest  []byte
	depth int
}

func decodeCBOR(content []byte) any {
	reader := cborReader{rest: content}
	item := reader.item()
	if len(reader.rest) > 0 {
		panic(Refused("malformed"))
	}
	return item
}

func (r *cborReader) take(length int64) []byte {
	if length > int64(len(r.rest)) {
		panic(Refused("truncated"))
	}
	taken := r.rest[:length]
	r.rest = r.rest[length:]
	return taken
}

func (r *cborReader) head(form byte) int64 {
	if form < 24 {
		return int64(form)
	}
	if form > 27 {
		panic(Refused("malformed"))
	}
	width := 1 << (form - 24)
	var wide [8]byte
	copy(wide[8-width:], r.take(int64(width)))
	value, least := binary.BigEndian.Uint64(wide[:]), uint64(1)<<(4*width)
	if width == 1 {
		least = 24
	}
	if value < least || value >= 1<<53 {
		panic(Refused("malformed"))
	}
	return int64(value)
}

func (r *cborReader) item() any {
	if r.depth++; r.depth > depthMax {
		panic(Refused("malformed"))
	}
	defer func() { r.depth-- }()
	first := r.take(1)[0]
	value := r.head(first & 31)
	switch first >> 5 {
	case 0:
		return value
	case 1:
		return -1 - value
	case 2:
		return r.take(value)
	case 3:
		if text := r.take(value); utf8.Valid(text) {
			return string(text)
		}
	case 4:
		items := []any{}
		for ; value > 0; value-- {
			items = append(items, r.item())
		}
		return items
	case 5:
		return r.mapOf(value)
	case 6:
		return cborTag{value, r.item()}
	}
	panic(Refused("malformed"))
}

func (r *cborReader) mapOf(count int64) cborMap {
	found, last := cborMap{}, []byte(nil)
	for ; count > 0; count-- {
		before := r.rest
		key := r.item()
		encoded := before[:len(before)-len(r.rest)]
		switch key.(type) {
		case int64, string:
		default:
			panic(Refused("malformed"))
		}
		if bytes.Compare(last, encoded) >= 0 {
			panic(Refused("malformed"))
		}
		last = encoded
		found[key] = r.item()
	}
	return found
}

func encodeString(major byte, content []byte) []byte {
	length := len(content)
	switch {
	case length < 24:
		return append([]byte{major<<5 | byte(length)}, content...)
	case length < 256:
		return append([]byte{major<<5 | 24, byte(length)}, content...)
	}
	return append([]byte{major<<5 | 25, byte(length >> 8), byte(length)}, content...)
}

// OpenManifest returns the manifest of an envelope that one of the keys has signed, if it fits to this program.
// now: seconds since 1970; 0 if the time is not known. The error is Refused.
func OpenManifest(envelope []byte, now int64) (manifest Manifest, err error) {
	defer func() {
		if why := recover(); why != nil {
			refused, isRefused := why.(Refused)
			if !isRefused {
				panic(why)
			}
			err = refused
		}
	}()
	if len(envelope) > envelopeBytesMax {
		panic(Refused("too-large"))
	}
	tagged, _ := decodeCBOR(envelope).(cborTag)
	parts, isList := tagged.item.([]any)
	if tagged.tag != 18 || !isList || len(parts) != 4 {
		panic(Refused("malformed"))
	}
	protected, isProtected := parts[0].([]byte)
	unprotected, isMap := parts[1].(cborMap)
	payload, isPayload := parts[2].([]byte)
	signature, isSignature := parts[3].([]byte)
	if !isProtected || !isMap || len(unprotected) > 0 || !isPayload || !isSignature {
		panic(Refused("malformed"))
	}
	statement := append([]byte{0x84}, encodeString(3, []byte("Signature1"))...)
	for _, part := range [][]byte{protected, nil, payload} {
		statement = append(statement, encodeString(2, part)...)
	}
	verifySignature(protected, statement, signature)
	fields, isMap := decodeCBOR(payload).(cborMap)
	if !isMap {
		panic(Refused("malformed"))
	}
	return fitting(fields, now), nil
}

func verifySignature(protected, statement, signature []byte) {
	header, _ := decodeCBOR(protected).(cborMap)
	keyID, isKeyID := header[int64(4)].([]byte)
	if len(header) != 3 || header[int64(3)] != manifestType || !isKeyID {
		panic(Refused("malformed"))
	}
	algorithm, _ := header[int64(1)].(int64)
	if algorithm != algorithmEd25519 && algorithm != algorithmES256 {
		panic(Refused("unsupported-version"))
	}
	genuine := false
	switch key := keyOf(keyID).(type) {
	case ed25519.PublicKey:
		genuine = algorithm == algorithmEd25519 && ed25519.Verify(key, statement, signature)
	case *ecdsa.PublicKey:
		if digest := sha256.Sum256(statement); algorithm == algorithmES256 && len(signature) == 64 {
			r, s := new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:])
			genuine = ecdsa.Verify(key, digest[:], r, s)
		}
	}
	if !genuine {
		panic(Refused("forged"))
	}
}

// keyOf returns the key with this identifier: the start of the SHA-256 of its DER.
func keyOf(keyID []byte) any {
	for rest := []byte(makerKeys); ; {
		block, following := pem.Decode(rest)
		if block == nil {
			panic(Refused("unknown-key"))
		}
		rest = following
		digest := sha256.Sum256(block.Bytes)
		if key, err := x509.ParsePKIXPublicKey(block.Bytes); err == nil && bytes.Equal(digest[:8], keyID) {
			return key
		}
	}
}

// fitting returns the manifest of a payload that fits to this program.
func fitting(fields cborMap, now int64) Manifest {
	if fields[int64(1)] != int64(1) {
		panic(Refused("unsupported-version"))
	}
	kind, name, version := textOf(fields, 2), textOf(fields, 3), textOf(fields, 4)
	sequence, size := numberOf(fields, 5), numberOf(fields, 8)
	boards, versions := textsOf(fields, 6), []string{firmwareVersion}
	digest, isBytes := fields[int64(9)].([]byte)
	known, notBefore := 8, int64(0)
	if fields[int64(7)] != nil {
		known++
		versions = textsOf(fields, 7)
	}
	if fields[int64(10)] != nil {
		known++
		notBefore = numberOf(fields, 10)
	}
	if len(fields) != known || kind != "firmware" || !versionPattern.MatchString(version) || size < 1 || !isBytes || len(digest) != 32 {
		panic(Refused("malformed"))
	}
	switch {
	case size > imageBytesMax:
		panic(Refused("too-large"))
	case name != firmwareName: // another artefact under the name of ours
		panic(Refused("forged"))
	case now > 0 && notBefore > now:
		panic(Refused("not-yet-valid"))
	case sequence <= firmwareSequence:
		panic(Refused("downgraded"))
	case !contains(boards, firmwareBoard):
		panic(Refused("wrong-board"))
	case !contains(versions, firmwareVersion):
		panic(Refused("wrong-from-version"))
	}
	return Manifest{Version: version, SHA256: hex.EncodeToString(digest), Sequence: sequence, Size: size}
}

func textOf(fields cborMap, key int64) string {
	text, isText := fields[key].(string)
	if !isText {
		panic(Refused("malformed"))
	}
	return text
}

func numberOf(fields cborMap, key int64) int64 {
	number, isNumber := fields[key].(int64)
	if !isNumber || number < 0 {
		panic(Refused("malformed"))
	}
	return number
}

func textsOf(fields cborMap, key int64) (texts []string) {
	items, _ := fields[key].([]any)
	for _, item := range items {
		text, isText := item.(string)
		if !isText {
			panic(Refused("malformed"))
		}
		texts = append(texts, text)
	}
	if len(texts) == 0 {
		panic(Refused("malformed"))
	}
	return texts
}

func contains(texts []string, wanted string) bool {
	for _, text := range texts {
		if text == wanted {
			return true
		}
	}
	return false
}
