#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# probe.sh HEADER NAME COMPILER...: writes to HEADER whether the section NAME of probes.c compiles, and to
# HEADER.log the command and what the compiler said. Fails if the answer cannot be trusted.
header=$1 name=$2
shift 2
# Warnings must not decide, even where they are errors (CONFIG_WERROR); wrong arguments must.
set -- "$@" -Wno-error -Werror=implicit-function-declaration -Werror=incompatible-pointer-types
set -- "$@" -Werror=int-conversion "-DPROBE_$name" -fsyntax-only
if "$@" > "$header.out" 2>&1; then
	answer=yes value=1
else
	answer=no value=0
fi
{
	echo "probe: $(echo "$name" | tr '[:upper:]' '[:lower:]'): $answer"
	[ $answer = yes ] || { echo "$@"; cat "$header.out"; } | sed 's/^/    /'
} > "$header.log"
rm -f "$header.out"
case $name:$answer in
HEADERS:no)
	cat "$header.log"
	echo "krping: cannot compile anything for this kernel: are its headers and its compiler complete?"
	exit 1
	;;
NO_SUCH_FUNCTION:yes)
	echo "krping: the compiler accepts a call of a function that does not exist: $*"
	exit 1
	;;
esac >&2
echo "#define KRPING_HAS_$name $value" > "$header"
