# Perl: file tests, editing in place, flock between processes, walking a tree, temporary files.
# needs: perl
set -euo pipefail
mkdir -p tree/a/b tree/c; seq 100 > tree/a/numbers; : > tree/empty; echo x > tree/a/b/x; ln -s ../a/numbers tree/c/soft; ln -s nowhere tree/c/dangling; ln tree/a/numbers tree/c/hard
chmod 4755 tree/a/b/x; chmod 000 tree/empty; chmod 2775 tree/c; printf '#!/bin/sh\necho run\n' > tree/script; chmod +x tree/script; head -c 3000 /dev/urandom > tree/binary; mkfifo tree/pipe
touch -d '2020-02-02' tree/a/numbers
perl -e 'for my $f (glob("tree tree/* tree/*/* tree/*/*/* missing")) { print "$f:", (map { my $r = eval "-$_ \$f"; $r ? " $_" : "" } qw(e f d l p S b c s z r x o R X O u g k t)), "\n" }' | sed 's/ [rxRXoO]\b//g'
perl -e 'printf "%d %s %d\n", -s "tree/a/numbers", (-M "tree/a/numbers" > 1000 && -A _ > 1000 ? "old" : "new"), (stat _)[3]; print -T "tree/a/numbers" ? "text\n" : "no\n", -B "tree/binary" ? "binary\n" : "no\n"; print readlink("tree/c/soft"), "\n"; @l = lstat "tree/c/soft"; print $l[7], "\n"; print -f -r -w "tree/script" ? "stacked\n" : "no\n"'
cp tree/a/numbers edit; perl -i.bak -pe 's/^(\d+)$/$1 * 2/e; $_ = "" if $. % 10 == 0' edit; wc -l edit edit.bak; perl -i -ne 'print reverse sort { $a <=> $b } ($_, <>)' edit; head -n 2 edit; cp edit second; perl -pi -e 'close ARGV if eof; s/^/$ARGV:$. / if $. < 3' edit second; sed -n 1,3p edit second
cat > count.pl <<'PL'
use Fcntl qw(:flock :seek); use strict; use warnings;
open my $f, "+<", "count" or die "open: $!";
for (1 .. 50) {
    flock $f, LOCK_EX or die "flock: $!"; seek $f, 0, SEEK_SET; my $n = <$f>; seek $f, 0, SEEK_SET; truncate $f, 0; print $f $n + 1; $f->flush; flock $f, LOCK_UN;
}
PL
echo 0 > count; for i in 1 2 3 4; do perl -MIO::Handle count.pl & done; wait; cat count; echo
perl -MFcntl=:flock -e 'open F, "<", "count"; flock F, LOCK_EX; if (!fork) { open G, "<", "count"; print flock(G, LOCK_EX | LOCK_NB) ? "got it\n" : "busy\n"; exit } wait; flock F, LOCK_UN; open G, "<", "count"; print flock(G, LOCK_EX | LOCK_NB) ? "got it\n" : "busy\n"'
perl -MFile::Find -e 'find({wanted => sub { push @f, $File::Find::name }, no_chdir => 1}, "tree"); print join(" ", sort @f), "\n"; finddepth(sub { push @d, $_ if -d && !-l }, "tree"); print "@{[sort @d]}\n"; find({wanted => sub { $n++ }, follow => 1, follow_skip => 2}, "tree"); print "$n\n"'
perl -e 'opendir D, "tree" or die; my $p = telldir D; @a = sort readdir D; seekdir D, $p; @b = sort readdir D; rewinddir D; $c = () = readdir D; closedir D; print "@a\n", "@a" eq "@b" ? "same" : "differ", " ", $c == @a ? "same\n" : "differ\n"'
perl -MFile::Temp=tempfile,tempdir -MFile::Spec -MFile::Basename -MCwd=getcwd,realpath -e '($fh, $n) = tempfile("tXXXXX", DIR => ".", UNLINK => 1); print $fh "temp"; close $fh; print -s $n, "\n"; $d = tempdir("dXXXXX", DIR => ".", CLEANUP => 1); mkdir "$d/sub"; open F, ">", "$d/sub/f"; close F; print -e "$d/sub/f" ? "there\n" : "no\n"; print realpath("tree/c/../a/b"), " ", getcwd() eq realpath(".") ? "same\n" : "differ\n"; print basename(realpath("tree/c/soft")), "\n"'; ls
perl -MFile::Path=make_path,remove_tree -MFile::Copy=cp,mv -MFile::Compare -e 'make_path("p/q/r", "p/s", {mode => 0750}); cp "edit", "p/q/e"; print compare("edit", "p/q/e"), "\n"; mv "p/q/e", "p/s/e"; mv "p/q", "p/t"; print join(" ", sort glob "p/* p/*/*"), "\n"; print remove_tree("p"), " ", -e "p" ? "there\n" : "gone\n"; utime 1, 2, "edit"; print join(" ", (stat "edit")[8, 9]), "\n"; chmod 0604, "edit", "second"; printf "%o\n", (stat "second")[2] & 07777; print rename("edit", "tree/moved") ? "ok\n" : "$!\n"; symlink "x", "sl"; print unlink("sl", "second", "missing"), "\n"; print umask, "\n"; truncate "edit.bak", 10; print -s "edit.bak", "\n"'
perl -e 'open R, "+>", "rw"; binmode R; print R pack("N*", 1 .. 1000); seek R, 400, 0; read R, $b, 8; print join(",", unpack "N*", $b), " ", tell R, " ", eof R ? 1 : 0, "\n"; sysseek R, 0, 2; syswrite R, "end"; sysseek R, -3, 2; sysread R, $b, 10; print "$b\n"; open D, ">&", \*R; print fileno(D) != fileno(R) ? "dup\n" : ""; close R; print -s "rw", "\n"; open L, "<", "rw"; local $/ = \1000; $n++ while <L>; print "$n\n"; open A, ">>", "rw"; if (!fork) { syswrite A, "child"; exit } wait; syswrite A, "parent"; open L, "<", "rw"; { local $/; $_ = <L> } print substr($_, -14), "\n"'
# The comparison has to be able to read it, as any user.
chmod 600 tree/empty; rm tree/binary
