#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# make_certs.sh DIR - two authorities, "ca" and "other", and certificates of each for a server
# (localhost, 127.0.0.1) and a client:
#   DIR/{ca,other}.pem  DIR/{ca,other}-{server,client}.{pem,key}
set -euo pipefail
dir=$1

new_key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1"; }

for ca in ca other; do
    new_key "$dir/$ca.key"
    openssl req -x509 -new -key "$dir/$ca.key" -subj "/CN=$ca of a test" -days 2 -out "$dir/$ca.pem"
    for who in server client; do
        name=$dir/$ca-$who
        new_key "$name.key"
        openssl req -new -key "$name.key" -subj "/CN=$who of $ca" -out "$name.csr"
        openssl x509 -req -in "$name.csr" -CA "$dir/$ca.pem" -CAkey "$dir/$ca.key" -days 2 \
            -set_serial "0x$(openssl rand -hex 8)" -out "$name.pem" \
            -extfile <(echo "subjectAltName=DNS:localhost,DNS:baton.test,IP:127.0.0.1")
    done
done 2>"$dir/openssl.log" || { cat "$dir/openssl.log" >&2; exit 1; }
