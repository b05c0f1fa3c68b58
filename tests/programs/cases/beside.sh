# needs: gcc
# Processes that share memory and thread area with their parent while both run (clone with CLONE_VM alone).
source "$CASES/../lib.sh"
gcc -O1 -w -o "$OUTER/beside" "$CASES/../c/beside.c"
for how in files copy fork exec many; do
  section "$how"
  mkdir "$how"; cd "$how"; "$OUTER/beside" "$how" $([ "$how" = many ] && echo 300 || echo 10); cd ..
done
rm "$OUTER/beside"
