# needs: gcc
# fcntl's leases: granted, refused, broken by other processes.
gcc -O1 -w -o "$OUTER/leases" "$CASES/../c/leases.c"
"$OUTER/leases" 2>&1
rm "$OUTER/leases"
