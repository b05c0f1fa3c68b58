# Small answers: locks, removed directories, errors before EXDEV, kcmp, access modes.
# needs: cc
# needs-xattr
set -euo pipefail
cc -O1 -w -o program "$CASES/../c/answers.c"
cp program "$OUTER/program"; rm program
"$OUTER/program" "$OUTER" | cat
rm "$OUTER/program"; rm -f sock
