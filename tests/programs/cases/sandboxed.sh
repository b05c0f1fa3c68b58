# needs: gcc
# Programs that give up most system calls (seccomp) and go on with their files. file(1) does so where it is installed.
source "$CASES/../lib.sh"
gcc -O1 -o "$OUTER/sandbox" "$CASES/../c/sandbox.c"
section the pool is first used behind the filter
mkdir cold && cd cold && "$OUTER/sandbox" a; ls -R | sort -n; cd ..
section and before
mkdir warm && cd warm && "$OUTER/sandbox" a warm; ls -R | sort -n; cd ..
if type -P file > /dev/null; then
  section file
  printf '#!/bin/sh\n' > script; gzip -nc script > script.gz; ln -s script link
  file script script.gz link "$PWD/script" nothere warm; file -b --mime-type *; file -z -b script.gz
fi
rm "$OUTER/sandbox"
