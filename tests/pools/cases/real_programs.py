"""Programs that lean on all of POSIX at once: the same results in a pool as in a plain directory.

PostgreSQL: many processes with shared mappings, fsync, a crash and its recovery. Java: mapped files, locks, an
archive of classes that the JVM maps. dpkg-buildpackage under fakeroot: a build of many short processes with
another preloaded library beside ours.
"""
import glob
import os
import re
import shutil
import tempfile

from harness import Skipped, case

NOBODY = 65534


def both(t, script, limit, **more):
    """Runs a script with a directory to work in, outside and in the pool `p`: what it prints is the same."""
    outside = os.path.join(t.work, "plain")
    os.mkdir(outside)
    if "user" in more:
        os.chown(outside, more["user"], more["group"])
    env = {"LC_ALL": "C.UTF-8", "TZ": "UTC", **more.pop("env", {})}
    words = ["bash", "-euc", script, "bash"]
    plain = t.command([*words, outside], env=env, timeout=limit, cwd="/", **more)
    forebay = t.forebay
    if more.get("user"):
        # Where another user finds it.
        where = os.path.join(t.work, "bin")
        os.mkdir(where)
        for name in ("forebay", "libforebay_preload.so", "libforebay_audit.so"):
            shutil.copy(os.path.join(os.path.dirname(t.forebay), name), where)
        forebay = os.path.join(where, "forebay")
    up = [forebay, "up", "--pool", "p", "--media", "memory:512M"]
    t.command(up, env=env, cwd="/", **more)
    inside = t.command([forebay, "exec", "--pool", "p", "--", *words, "/fb/plain"], env=env, timeout=limit,
                       cwd="/", **more)
    t.ok(inside.out == plain.out, "it printed\n%s\noutside, and\n%s\nin the pool" % (plain.told(), inside.told()))
    t.command([forebay, "fsck", "--pool", "p"], env=env, cwd="/", **more)
    t.command([forebay, "down", "--pool", "p"], env=env, cwd="/", **more)
    return inside


POSTGRESQL = r'''
cd "$1" 2> /dev/null || { mkdir -p "$1"; cd "$1"; }
PATH=$(ls -d /usr/lib/postgresql/*/bin /usr/pgsql*/bin 2> /dev/null | tail -1):$PATH
sockets=$(mktemp -d /tmp/fb-pg-XXXXXX)
quit() { pg_ctl -D data -m immediate stop > /dev/null 2>&1 || true; rm -rf "$sockets"; }
trap quit EXIT
initdb -N -D data -U me --no-locale -E UTF8 > initdb.log 2>&1 || { cat initdb.log; exit 1; }
printf "listen_addresses = ''\nunix_socket_directories = '%s'\nmax_connections = 20\nshared_buffers = 16MB\n" "$sockets" >> data/postgresql.conf
start() { pg_ctl -D data -l server.log -w -t 30 start > start.log 2>&1; }
export PGHOST=$sockets PGUSER=me PGDATABASE=postgres
start || { cat start.log server.log; exit 1; }
pgbench -i -s 1 > init.log 2>&1
psql -qAt -c "create table t(n int primary key, words text); insert into t select n, repeat(md5(n::text), 9) from generate_series(1, 5000) n;
create index on t(words); delete from t where n % 7 = 0"
psql -qAt -c "vacuum analyze t"
pgbench -c 4 -j 2 -t 100 > bench.log 2>&1
sed -n 's/^number of transactions actually processed: /transactions: /p' bench.log
psql -qAt -c "select count(*), sum(abalance), (select sum(bbalance) = sum(b.abalance) from pgbench_branches) from pgbench_accounts b"  | cut -d'|' -f1,3
# Committed data are there after a crash, at whatever moment.
pgbench -c 4 -j 2 -T 60 > crash.log 2>&1 & bench=$!
until [ "$(psql -qAt -c 'select count(*) > 600 from pgbench_history')" = t ]; do sleep 0.1; done
psql -qAt -c "insert into t values (0, 'last')"
kill -9 "$(head -1 data/postmaster.pid)"
wait $bench || true
# Its other processes need a moment to notice.
for i in $(seq 100); do start && break; sleep 0.1; done
grep -q "automatic recovery in progress" server.log && echo recovered
psql -qAt -c "select n, words from t where n = 0; select count(*), md5(string_agg(words, ',' order by n)) from t where n > 0"
psql -qAt -c "select (select sum(delta) from pgbench_history) = (select sum(abalance) from pgbench_accounts), count(*) > 600 from pgbench_history"
psql -qAt -c "create extension if not exists amcheck; select bool_and(true) from pg_class c, lateral bt_index_check(c.oid) where c.relkind = 'i' and c.relam = 403 and c.relpersistence = 'p'" | tail -1
pg_ctl -D data -w stop > stop.log
pg_controldata data | grep "cluster state"
trap - EXIT
rm -rf "$sockets"
'''


@case(120)
def postgresql(t):
    if not (shutil.which("postgres") or glob.glob("/usr/lib/postgresql/*/bin/postgres")):
        raise Skipped("PostgreSQL isn't installed")
    more = {}
    if os.geteuid() == 0:
        # It doesn't run as root: another user's pool.
        home = tempfile.mkdtemp(prefix="fbt-pg-", dir="/dev/shm")
        os.chmod(home, 0o700)
        os.chown(home, NOBODY, NOBODY)
        more = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "env": {"FOREBAY_HOME": home, "HOME": home}}
    try:
        both(t, POSTGRESQL, 50, **more).prints("^transactions: 400/400$", "^100000\\|t$", "^recovered$", "^0\\|last$", "shut down")
    finally:
        if more:
            shutil.rmtree(home, ignore_errors=True)


JAVA = r'''
import java.io.*;
import java.nio.*;
import java.nio.channels.*;
import java.nio.file.*;
import java.util.*;
import java.util.stream.*;
import java.util.zip.*;

public class Program {
    static class Item implements Comparable<Item> {
        final int n;
        Item(int n) { this.n = n; }
        public int compareTo(Item o) { return Integer.compare(n, o.n); }
    }

    public static void main(String[] words) throws Exception {
        if (words.length > 0) { other(); return; }
        Path p = Path.of("mapped");
        try (FileChannel c = FileChannel.open(p, StandardOpenOption.CREATE, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            MappedByteBuffer m = c.map(FileChannel.MapMode.READ_WRITE, 0, 1 << 20);
            for (int i = 0; i < 1 << 18; i++) m.putInt(i * 7919);
            m.force();
            ByteBuffer b = ByteBuffer.allocate(8);
            c.read(b, 4000); b.flip();
            System.out.println(b.getInt() + " " + b.getInt() + " " + c.size());
            c.write(ByteBuffer.wrap(new byte[] {1, 2, 3, 4}), 8);
            System.out.println(m.getInt(8));
            CRC32 crc = new CRC32(); m.rewind(); crc.update(m); System.out.println(crc.getValue());
            // A lock of this process is in the way of another one, and of no other channel of its own.
            try (FileLock l = c.lock(0, 100, false)) {
                try { c.tryLock(50, 10, true); System.out.println("twice"); } catch (OverlappingFileLockException e) { System.out.println("overlaps"); }
                Process q = new ProcessBuilder(ProcessHandle.current().info().command().get(), "-cp", System.getProperty("java.class.path"), "-XX:TieredStopAtLevel=1", "Program", "other").inheritIO().start();
                System.out.println("other: " + q.waitFor());
            }
            c.transferTo(0, 100000, FileChannel.open(Path.of("part"), StandardOpenOption.CREATE, StandardOpenOption.WRITE));
        }
        try (RandomAccessFile f = new RandomAccessFile("raf", "rw")) { f.setLength(5000); f.seek(4990); f.writeUTF("at the end"); System.out.println(f.length()); }
        Files.createDirectories(Path.of("a/b/c")); Files.move(Path.of("raf"), Path.of("a/b/c/raf"), StandardCopyOption.ATOMIC_MOVE);
        Files.createSymbolicLink(Path.of("link"), Path.of("a/b"));
        try (Stream<Path> s = Files.walk(Path.of("."), FileVisitOption.FOLLOW_LINKS)) { System.out.println(s.map(Path::toString).filter(n -> !n.contains("class") && !n.contains("log")).sorted().collect(Collectors.joining(" "))); }
        try (ZipOutputStream z = new ZipOutputStream(new FileOutputStream("z.zip"))) { for (int i = 0; i < 50; i++) { z.putNextEntry(new ZipEntry("e" + i)); z.write(("text " + i).repeat(100).getBytes()); } }
        try (FileSystem z = FileSystems.newFileSystem(Path.of("z.zip"))) { System.out.println(Files.readString(z.getPath("/e49")).length()); }
        System.out.println(Files.getLastModifiedTime(p).toMillis() > 0 ? new TreeSet<>(List.of(new Item(2), new Item(1))).first().n : 0);
    }

    static void other() throws Exception {
        try (FileChannel c = FileChannel.open(Path.of("mapped"), StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            System.out.println(c.tryLock(50, 10, false) == null ? "locked" : "free");
            System.out.println(c.tryLock(200, 10, false) == null ? "locked" : "free");
            System.out.println(c.map(FileChannel.MapMode.READ_ONLY, 0, 100).getInt(8));
        }
    }
}
'''

# Compiled, packed, and run from a jar, with an archive of its classes that lies beside it and is mapped by the JVM.
JAVA_SCRIPT = r'''
mkdir -p "$1"; cd "$1"
export JAVA_TOOL_OPTIONS="-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.io.tmpdir=$1"
quick() { grep -v "Picked up JAVA_TOOL_OPTIONS" || true; }
printf %s "$PROGRAM" > Program.java
javac -d classes Program.java 2>&1 | quick
jar -c -f program.jar -C classes . 2>&1 | quick
java -XX:ArchiveClassesAtExit=program.jsa -Xlog:cds=off -cp program.jar Program 2> first.log
rm -rf a link part raf z.zip mapped
java -XX:SharedArchiveFile=program.jsa -Xshare:auto -Xlog:class+load:file=loaded.log -cp program.jar Program 2> second.log
grep -c "Program source: shared objects file (top)" loaded.log
cksum < mapped; cksum < part
'''


@case(120)
def java(t):
    if not shutil.which("javac"):
        raise Skipped("there is no Java compiler")
    # Archives of a program's own classes are made by Java 13 and later.
    version = t.command(["javac", "-version"])
    if int(re.search(r"javac (\d+)", version.out + version.err).group(1)) < 13:
        raise Skipped("this Java is older than 13")
    both(t, JAVA_SCRIPT, 50, env={"PROGRAM": JAVA}).prints("^overlaps$", "^locked$", "^free$", "^other: 0$", "^[1-9]$")


# A package with a program, made by `fakeroot`: its files belong to root, and one to another user.
PACKAGE = r'''
mkdir -p "$1"; cd "$1"; umask 022
mkdir -p greet-1.0/debian; cd greet-1.0
for i in $(seq 40); do printf 'int part%d(int n) { return n * %d; }\n' $i $i > part$i.c; done
{ echo '#include <stdio.h>'; for i in $(seq 40); do echo "int part$i(int);"; done; echo 'int main(void) { int n = 0;'; for i in $(seq 40); do echo "n += part$i(n + 1) % 1000;"; done; echo 'printf("%d\n", n); return 0; }'; } > greet.c
printf 'greet: $(patsubst %%.c,%%.o,$(wildcard *.c))\n\tcc -o $@ $^\n%%.o: %%.c\n\tcc -O1 -c -o $@ $<\n' > Makefile
printf 'Source: greet\nMaintainer: Me <me@example.org>\nSection: misc\nPriority: optional\nStandards-Version: 4.6.0\n\nPackage: greet\nArchitecture: any\nDescription: greets\n all the world.\n' > debian/control
printf 'greet (1.0) unstable; urgency=low\n\n  * First.\n\n -- Me <me@example.org>  Mon, 01 Jan 2024 00:00:00 +0000\n' > debian/changelog
cat > debian/rules <<'END'
#!/usr/bin/make -f
T = debian/greet
build build-arch:
	$(MAKE) -j2 -s greet
build-indep binary-indep:
binary binary-arch: build
	install -d $(T)/DEBIAN $(T)/usr/bin $(T)/var/lib/greet
	install -o root -g root -m 4755 greet $(T)/usr/bin/greet
	install -o daemon -g daemon -m 640 Makefile $(T)/var/lib/greet/rules
	ln -s ../../../usr/bin/greet $(T)/var/lib/greet/link
	mknod $(T)/var/lib/greet/null c 1 3
	dpkg-gencontrol -pgreet -P$(T)
	dpkg-deb -Znone -b $(T) ..
clean:
	rm -rf *.o greet debian/greet debian/files debian/*.substvars
.PHONY: build build-arch build-indep binary binary-arch binary-indep clean
END
chmod 755 debian/rules
dpkg-buildpackage -rfakeroot -us -uc -b -d > ../build.log 2>&1 || { tail -20 ../build.log; exit 1; }
cd ..
ls
dpkg-deb -c greet_1.0_*.deb | awk '{$4 = ""; $5 = ""; print}'
dpkg-deb -x greet_1.0_*.deb out 2> /dev/null || true
./out/usr/bin/greet
fakeroot bash -c 'touch mine; chown 1234:4321 mine; chmod u+s mine; tar -c mine | tar -tv --numeric-owner' | awk '{print $1, $2, $NF}'
stat -c '%a' mine
'''


@case(120)
def debian_package(t):
    for need in ("fakeroot", "dpkg-buildpackage", "make", "cc"):
        if not shutil.which(need):
            raise Skipped("there is no " + need)
    both(t, PACKAGE, 50).prints("^greet_1.0_.*deb$", "^crw.*root/root.*null", "daemon/daemon .*rules$", "1234/4321 mine$")
