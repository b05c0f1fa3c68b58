# needs: gcc
# Libraries and programs that make system calls by instructions of their own, without libc: linked, loaded when the program
# runs, stored here and elsewhere.
source "$CASES/../lib.sh"
c="$CASES/../c"
gcc -O2 -w -fPIC -shared -o "$OUTER/libraw.so" "$c/raw_library.c"
gcc -O0 -w -fPIC -shared -Wl,--build-id=none -o "$OUTER/plain.so" "$c/raw_library.c"
gcc -O2 -w -DLINKED -o "$OUTER/linked" "$c/raw.c" "$OUTER/libraw.so" -Wl,-rpath,"$OUTER"
gcc -O2 -w -DLINKED -o "$OUTER/own" "$c/raw.c" "$c/raw_library.c"
gcc -O2 -w -no-pie -DLINKED -o "$OUTER/fixed" "$c/raw.c" "$c/raw_library.c"
gcc -O2 -w -o "$OUTER/loads" "$c/raw.c" -ldl
shown() { (cd "$1"; ls; cat shared own; cat from-* | cksum; stat -c '%n %A %s' placed); }
for program in linked own fixed; do
  section "$program"
  RAW_BEGIN=$WORK/begun-$program "$OUTER/$program" linked "$WORK/by-$program"; cat "begun-$program"; shown "by-$program"
done
for library in libraw.so plain.so; do
  section "loaded: $library"
  "$OUTER/loads" "$OUTER/$library" "$WORK/${library%.so}"; shown "${library%.so}"
done
section stored here
cp "$OUTER/plain.so" "$OUTER/libraw.so" "$OUTER/loads" "$OUTER/own" .
./loads ./plain.so "$WORK/here"; shown here
"$OUTER/loads" "$WORK/libraw.so" there; shown there
./own linked here2; shown here2
section threads
for i in 1 2 3 4; do "$OUTER/own" linked "many-$i" > "$OUTER/out-$i" & done; wait
for i in 1 2 3 4; do cmp "$OUTER/out-$i" "$OUTER/out-1"; shown "many-$i"; done
rm -f "$OUTER"/{libraw.so,plain.so,linked,own,fixed,loads,out-*} plain.so libraw.so loads own
