# Moving, copying and linking between the pool and the plain file system.
# needs: mv cp ln diff readlink
set -euo pipefail
source "$CASES/../lib.sh"

mkdir -p tree/a/b tree/c
seq 1 50000 > tree/a/numbers; echo x > tree/a/b/x; chmod 640 tree/a/b/x
ln tree/a/numbers tree/c/hard; ln -s ../a/b/x tree/c/soft
touch -d '2004-05-06 07:08:09' tree/a/numbers tree/a/b/x
touch -d '2004-05-06 07:08:10' tree/c
cp -a tree tree2

section out
cp tree/a/numbers "$OUTER/copied" && cmp tree/a/numbers "$OUTER/copied" && echo copied
cp -a tree "$OUTER/tree-a" && diff -r tree "$OUTER/tree-a" && echo same tree
mv tree/a/b/x "$OUTER/moved" && [ ! -e tree/a/b/x ] && cat "$OUTER/moved" && stat -c '%a %Y' "$OUTER/moved"
mv tree "$OUTER/tree-moved" && [ ! -e tree ]
plain_ls -lR "$OUTER/tree-moved"
[ "$OUTER/tree-moved/c/hard" -ef "$OUTER/tree-moved/a/numbers" ] && echo still linked
mv tree2/c/soft "$OUTER/soft" && readlink "$OUTER/soft"

section in
mv "$OUTER/tree-a" back && [ ! -e "$OUTER/tree-a" ] && plain_ls -lR back
stat -c '%n %Y %a' back/a/numbers back/a/b/x back/c
[ back/c/hard -ef back/a/numbers ] && echo still linked
mv "$OUTER/moved" back/moved; mv "$OUTER/copied" back/; ls back
cp -r "$OUTER/tree-moved" again; diff again/a/numbers back/a/numbers
mv -f back/copied again/a/numbers && wc -l again/a/numbers
mkdir "$OUTER/many" && (cd "$OUTER/many" && for i in 1 2 3 4 5; do echo $i > f$i; done)
mv "$OUTER"/many/* again/ && ls again && rmdir "$OUTER/many"
cat "$OUTER/tree-moved/a/numbers" back/a/numbers | sha256sum > "$OUTER/sum"; cat "$OUTER/sum"
tar cf - back | tar xf - -C "$OUTER"; (cd "$OUTER" && tar cf - tree-moved) | tar xf - ; diff -r back "$OUTER/back" && ls
rm -rf "$OUTER/back"

section links
echo outside > "$OUTER/target"; ln -s "$OUTER/target" to-outside; cat to-outside
echo appended >> to-outside; cat "$OUTER/target"; readlink -f to-outside
mkdir "$OUTER/dir"; echo in-dir > "$OUTER/dir/f"; ln -s "$OUTER/dir" to-dir; cat to-dir/f; echo new > to-dir/new; ls "$OUTER/dir" to-dir/
(cd to-dir && pwd -P && cat f && ls ..) | sed "s,^fbt.*,x,"
ln -s "$WORK/back/moved" "$OUTER/to-inside"; readlink "$OUTER/to-inside"
ln -s "$OUTER/dir" one; ln -s one two; cat two/f
rm to-dir/new; [ ! -e "$OUTER/dir/new" ] && rm two/f && [ ! -e "$OUTER/dir/f" ] && echo removed

section directories
cd /tmp; pwd; cat "$WORK/back/moved"; cd "$OUTER"; echo from-outer > "$WORK/from-outer"; cat "$WORK/from-outer"
cp "$WORK/from-outer" here; ls; cd "$WORK"; cat from-outer "$OUTER/here"
cd /; cat "./${WORK#/}/from-outer"; cd usr/..; cat "${WORK#/}/from-outer"
cd "$WORK/back/a"; cmp "../../../../etc/passwd" /etc/passwd && echo up and out
cd "$WORK"; cmp ../../etc/passwd /etc/passwd && echo out; cmp "../../${OUTER#/}/here" from-outer && echo over
(cd ../..; pwd; ls -d etc usr; cat "${WORK#/}/from-outer"); cd "../../${OUTER#/}"; pwd; cat here
cd "$WORK"; cp ../../etc/passwd ./p; cmp p /etc/passwd; rm p
cd "$OUTER/dir"; cd -; cd - ; cd "$WORK"; pushd "$OUTER" > /dev/null; cat here; popd > /dev/null; cat from-outer
(cd "$OUTER" && bash -c 'cd "$WORK" && bash -c "cat from-outer; cd \"\$OUTER\"; cat here"')
find "$OUTER" from-outer "$WORK/again" -type f | sed "s,$OUTER,@OUTER@,; s,$WORK,@WORK@," | sort
sort -m from-outer "$OUTER/here" > "$OUTER/merged"; sort "$OUTER/merged" -o from-merged; cat from-merged
diff -q "$OUTER/here" from-outer && echo equal; ls /usr /etc "$WORK" > /dev/null && /bin/ls -d "$WORK" /usr
exec 3> "$OUTER/fd" 4> fd; echo out >&3; echo in >&4; exec 3>&4; echo dup >&3; exec 3>&- 4>&-; cat "$OUTER/fd" fd
cat < "$OUTER/fd" > fd2; cat < fd > "$OUTER/fd2"; cat fd2 "$OUTER/fd2"
! ln from-outer "$OUTER/no/such" 2> /dev/null && echo refused
! rmdir "$WORK" 2> /dev/null && echo not empty
