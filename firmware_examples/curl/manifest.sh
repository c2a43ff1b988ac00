# Signed manifest of a new version: COSE_Sign1 (RFC 9052), read by jq and verified by OpenSSL 3.

# Decoder of CBOR in the deterministic encoding (RFC 8949, 4.2.1), as far as manifests have it, over an array of bytes.
cbor='
def head($b; $i): # major type, value, next index
  if $i >= ($b | length) then error("truncated") else
    ($b[$i] % 32) as $form | (($b[$i] - $form) / 32) as $major |
    if $form < 24 then [$major, $form, $i + 1]
    elif $form > 27 then error("malformed")
    else [1, 2, 4, 8][$form - 24] as $width |
      if $i + 1 + $width > ($b | length) then error("truncated") else
        (reduce $b[$i + 1:$i + 1 + $width][] as $byte (0; . * 256 + $byte)) as $value |
        if $value < [24, 256, 65536, 4294967296][$form - 24] or $value > 9007199254740991 then error("malformed")
        else [$major, $value, $i + 1 + $width] end
      end
    end
  end;
def item($b; $i; $depth): # value, next index
  if $depth > 8 then error("malformed") else
    head($b; $i) as [$major, $n, $at] |
    if $major == 0 then [$n, $at]
    elif $major == 1 then [-1 - $n, $at]
    elif $major == 2 or $major == 3 then
      if $at + $n > ($b | length) then error("truncated") else
        $b[$at:$at + $n] as $content |
        if $major == 2 then [{bytes: $content}, $at + $n]
        elif any($content[]; . < 32 or . > 126) then error("malformed")
        else [($content | implode), $at + $n] end
      end
    elif $major == 4 then
      reduce range($n) as $_ ([[], $at]; . as [$list, $p] | item($b; $p; $depth + 1) as [$v, $q] | [$list + [$v], $q])
    elif $major == 5 then
      reduce range($n) as $_ ([{}, $at, []];
        . as [$map, $p, $last] | item($b; $p; $depth + 1) as [$key, $q] |
        if ($key | type) != "number" or $b[$p:$q] <= $last then error("malformed") else
          item($b; $q; $depth + 1) as [$v, $r] | [$map + {"\($key)": $v}, $r, $b[$p:$q]] end)
      | [{map: .[0]}, .[1]]
    elif $major == 6 then item($b; $at; $depth + 1) as [$v, $q] | [{tag: $n, item: $v}, $q]
    else error("malformed") end
  end;
def whole: . as $b | item($b; 0; 0) as [$value, $after] | if $after == length then $value else error("malformed") end;
def bytes: if type == "object" and has("bytes") then .bytes else error("malformed") end;
def fields: if type == "object" and has("map") then .map else error("malformed") end;
'

bytes_of() { od -An -v -tu1 "$1" | jq -s .; }
write_bytes() { # FILE; an array of bytes comes in
    # shellcheck disable=SC2059 - the text has escapes only
    printf %b "$(jq -r 'map("\\0\(. / 64 | floor)\(. % 64 / 8 | floor)\(. % 8)") | add // ""')" > "$1"
}

# Print the manifest of a file as JSON, if one of the keys has signed it and it fits to this program; else
# {"refused": REASON}.
open_manifest() { # FILE FOLDER NOW; NOW is empty if the time is not known
    [ "$(wc -c < "$1")" -le 16384 ] || { echo '{"refused": "too-large"}'; return; }
    parts=$(bytes_of "$1" | jq -c "$cbor"'
        def string: if length < 24 then [64 + length] elif length < 256 then [88, length]
            else [89, (length / 256 | floor), length % 256] end + .;
        def number: until(length == 1 or .[0] != 0; .[1:]) | if .[0] > 127 then [0] + . else . end | [2, length] + .;
        try (whole |
            if type == "object" and .tag == 18 and (.item | type == "array" and length == 4) then .item
            else error("malformed") end |
            (.[0] | bytes) as $protected | (.[2] | bytes) as $payload | (.[3] | bytes) as $signature |
            if .[1] != {map: {}} then error("malformed") else ($protected | whole | fields) end |
            if length != 3 or .["3"] != "application/vnd.waypost.artefact+cbor" then error("malformed") else . end |
            (.["4"] | bytes) as $key | .["1"] as $algorithm |
            if $algorithm != -8 and $algorithm != -7 then error("unsupported-version") else . end |
            {$algorithm, $payload, $key,
             statement: ([132, 106] + ("Signature1" | explode) + ($protected | string) + [64] + ($payload | string)),
             signature: (if ($signature | length) != 64 then []
                elif $algorithm == -8 then $signature
                else ($signature[:32] | number) + ($signature[32:] | number) | [48, length] + . end)})
        catch {refused: .}')
    [ "$(echo "$parts" | jq 'has("refused")')" = false ] || { echo "$parts"; return; }
    for part in statement signature key; do echo "$parts" | jq ".$part" | write_bytes "$2/$part"; done
    reason=$(verify_signature "$2" "$(echo "$parts" | jq .algorithm)")
    [ -z "$reason" ] || { printf '{"refused": "%s"}' "$reason"; return; }
    echo "$parts" | jq -c --arg now "$3" --arg name "$firmware_name" --arg version "$firmware_version" \
        --arg board "$firmware_board" --argjson sequence "$firmware_sequence" "$cbor"'
        def needs(condition; $reason): if condition then . else error($reason) end;
        def texts: type == "array" and length > 0 and all(type == "string");
        def whole_number: type == "number" and . >= 0;
        try (.payload | whole | fields |
            needs(.["1"] == 1; "unsupported-version") |
            needs((keys - ["1", "10", "2", "3", "4", "5", "6", "7", "8", "9"]) == []; "malformed") |
            needs(.["2"] == "firmware" and (.["3"] | type == "string") and (.["5"] | whole_number); "malformed") |
            needs(.["4"] | type == "string" and test("^[A-Za-z0-9][A-Za-z0-9.+_-]{0,63}$"); "malformed") |
            needs((.["6"] | texts) and (has("7") | not) or (.["6"] | texts) and (.["7"] | texts); "malformed") |
            needs((.["8"] | whole_number and . > 0) and (.["9"] | bytes | length == 32); "malformed") |
            needs((has("10") | not) or (.["10"] | whole_number); "malformed") |
            needs(.["8"] <= 67108864; "too-large") |
            needs(.["3"] == $name; "forged") | # another artefact under the name of ours
            needs($now == "" or (.["10"] // 0) <= ($now | tonumber); "not-yet-valid") |
            needs(.["5"] > $sequence; "downgraded") |
            needs(.["6"] | index([$board]); "wrong-board") |
            needs((has("7") | not) or (.["7"] | index([$version])); "wrong-from-version") |
            def hex: map("0123456789abcdef" as $digits | $digits[. / 16 | floor:][:1] + $digits[. % 16:][:1]) | add;
            {version: .["4"], sequence: .["5"], size: .["8"], sha256: (.["9"].bytes | hex)})
        catch {refused: .}'
}

# Print a reason unless one of the keys has signed the statement.
verify_signature() { # FOLDER ALGORITHM
    wanted=$(od -An -v -tx1 "$1/key" | tr -d ' \n')
    rm -f "$1"/maker.*
    echo "$maker_keys" | awk -v name="$1/maker." '/BEGIN PUBLIC KEY/ {n++} n {print > (name n)}'
    for key in "$1"/maker.*; do
        [ -e "$key" ] || break
        [ "$(openssl pkey -pubin -in "$key" -outform DER | sha256sum | cut -c1-16)" = "$wanted" ] || continue
        case $2 in
        -8) openssl pkeyutl -verify -pubin -inkey "$key" -rawin -in "$1/statement" -sigfile "$1/signature" ;;
        *) openssl dgst -sha256 -verify "$key" -signature "$1/signature" "$1/statement" ;;
        esac > /dev/null 2>&1 || echo forged
        return
    done
    echo unknown-key
}
