#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# descriptors.sh NAME FILE.proto... - prints C with the descriptor set of these files and what
# they import, as the constant bt_reflection_NAME (build step of //proto:reflection).
set -eu
name=$1
shift
set_file=$(mktemp)
trap 'rm -f "$set_file"' EXIT
protoc --proto_path=. --include_imports --descriptor_set_out="$set_file" "$@"
echo '#include "proto/reflection.h"'
echo "static const uint8_t bytes[] = {"
od -An -v -tu1 "$set_file" | sed 's/  */,/g; s/^,//; s/$/,/'
echo "};"
echo "const bt_descriptor_set bt_reflection_$name = {.bytes = bytes, .len = sizeof bytes};"
