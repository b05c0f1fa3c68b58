# needs: gcc
# Set-user-ID and set-group-ID bits go with a write, as in the kernel.
gcc -O1 -w -o "$OUTER/privileges" "$CASES/../c/privileges.c"
"$OUTER/privileges" 2>&1
rm "$OUTER/privileges"
