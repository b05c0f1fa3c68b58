# Trees whose paths are longer than PATH_MAX, reached by cd step by step: find, du, ls, tar, cp and rm work there by
# relative paths, and getcwd is the kernel's ENAMETOOLONG.
source "$CASES/../lib.sh"
name=$(printf 'd%.0s' {1..200}); short() { sed 's/dddd*/D/g'; }
for i in {1..30}; do mkdir "$name"; cd "$name" || exit 1; done 2> "$OUTER/err"
mkdir -p a/b/c; echo leaf > a/b/c/leaf; echo y > y
section below
{ find . | sort; find . -type f -exec cat {} +; find a -execdir echo {} \; ; ls -R . | wc -l; du -a --apparent-size . | wc -l
tar cf - a | tar tf - | sort; cp -r a a2; rm -r a; find . | sort; sh -c 'cat y; ls'; } 2> "$OUTER/err"
section the working directory
perl -e 'require "syscall.ph" if 0; $b = "\0" x 10000; $n = syscall(79, $b, 10000); print "$n: $!\n"'
perl -e '$b = "\0" x 10; $n = syscall(79, $b, 10); print "$n: $!\n"'
section from above
{ cd ..; find . | short | sort; } 2> "$OUTER/err"
cd "$WORK"; find . | wc -l; find "$WORK" | wc -l; du "$WORK" | wc -l; find . -name leaf | short
rm -r d*; ls; rm "$OUTER/err"
