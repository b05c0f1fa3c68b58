# needs: gcc
# Threads that share their parent's thread area (clone with CLONE_THREAD, without CLONE_SETTLS) and work when it does.
source "$CASES/../lib.sh"
gcc -O2 -w -o "$OUTER/threads" "$CASES/../c/raw_threads.c"
for how in own libc processes; do
  section "$how"
  mkdir "$how"; cd "$how"; "$OUTER/threads" "$how" 3; ls | wc -l; sort shared | cksum; rm shared; cat executed 2>/dev/null || true; cd ..
done
rm "$OUTER/threads"
