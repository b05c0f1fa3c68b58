//! Chunks in memory: writing to one changes the collection, other processes can attach it, and dead
//! processes leave nothing behind.

mod support;

use forebay_client::Pool;
use forebay_client::controls::Declared;
use forebay_iov::{
    Access, Chunk, Collection, Errno, Key, Meta, Options, Session, Token, Workspace,
};
use forebay_posix::Fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use support::{TestPool, options};

fn bytes(chunk: &Chunk) -> Vec<u8> {
    let mut all = vec![0; chunk.len()];
    chunk.read(&mut all, 0).unwrap();
    all
}

fn errno<T>(result: forebay_iov::Result<T>) -> Errno {
    result.map(|_| ()).unwrap_err().errno()
}

/// Another process, which reads commands line by line, carries them out, and answers each one.
struct Other(Child, ChildStdin, BufReader<ChildStdout>);

impl Other {
    fn start(pool: &TestPool) -> Other {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env("VERBS_TEST_CHILD", pool.place())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let to = child.stdin.take().unwrap();
        let from = BufReader::new(child.stdout.take().unwrap());
        Other(child, to, from)
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.1, "{line}").unwrap();
        loop {
            let mut line = String::new();
            assert_ne!(self.2.read_line(&mut line).unwrap(), 0, "it has ended");
            if let Some((_, answer)) = line.trim().split_once("answer ") {
                return answer.into();
            }
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn hex(token: &Token) -> String {
    token.0.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Token {
    let byte = |i: usize| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap();
    Token(std::array::from_fn(byte))
}

/// Carries out the commands of [`Other`]: `attach TOKEN`, `allocate`, `get`, `put BYTE`.
#[test]
fn child() {
    let Ok(place) = std::env::var("VERBS_TEST_CHILD") else {
        return;
    };
    let session = Session::open(&place).unwrap();
    let mut chunk = None;
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (what, with) = line.split_once(' ').unwrap_or((&line, ""));
        let held = || chunk.as_ref().unwrap();
        let answer = match what {
            "attach" => match Chunk::attach(&session, &unhex(with)) {
                Ok(attached) => {
                    chunk = Some(attached);
                    "attached".into()
                }
                Err(e) => format!("errno {}", e.errno().raw_os_error()),
            },
            "allocate" => {
                chunk = Some(Chunk::allocate(&session, 100_000).unwrap());
                hex(&chunk.as_ref().unwrap().share().unwrap())
            }
            "get" => format!("{:?}", bytes(held())[0]),
            "put" => match held().write(&[with.parse().unwrap()], 0) {
                Ok(()) => "put".into(),
                Err(e) => format!("errno {}", e.errno().raw_os_error()),
            },
            _ => panic!("{line}"),
        };
        println!("answer {answer}");
    }
}

#[test]
fn what_is_stored_is_the_collections() {
    let pool = TestPool::new("chunks");
    let session = pool.session();
    let w = Workspace::create(&session, "w", &Meta::new()).unwrap();
    let c = Collection::create(&w, "c", &Options::default()).unwrap();
    c.write(b"0123456789", 0).unwrap();
    c.truncate(3 << 20).unwrap();
    let chunk = Chunk::map(&c, 4, 2 << 20, Access::Write).unwrap();
    assert_eq!(bytes(&chunk)[..8], *b"456789\0\0");
    chunk.write(b"abc", 1).unwrap();
    chunk.write(b"end", (2 << 20) - 3).unwrap();
    let mut seen = [0; 10];
    c.read(&mut seen, 0).unwrap();
    assert_eq!(&seen, b"01234abc89");
    c.read(&mut seen, (2 << 20) + 1).unwrap();
    assert_eq!(&seen, b"end\0\0\0\0\0\0\0");
    c.write(b"X", 5).unwrap();
    assert_eq!(bytes(&chunk)[..3], *b"4Xb");
    let reading = Chunk::map(&c, 4096, 1, Access::Read).unwrap();
    assert_eq!(errno(reading.write(b"x", 0)), Errno::ACCESS);
    assert_eq!(errno(chunk.write(b"xx", (2 << 20) - 1)), Errno::INVAL);

    // After a truncation the memory beyond the end is zeros, and writes to it don't reach the
    // collection. After the collection has grown again, writes reach it.
    c.truncate(8).unwrap();
    assert_eq!(bytes(&chunk)[..6], *b"4Xbc\0\0");
    assert_eq!(bytes(&chunk)[(2 << 20) - 3..], [0; 3]);
    chunk.write(b"lost", 1 << 20).unwrap();
    c.truncate(3 << 20).unwrap();
    assert_eq!(bytes(&chunk)[1 << 20..][..4], [0; 4]);
    chunk.write(b"kept", 1 << 20).unwrap();
    c.read(&mut seen, (1 << 20) + 4).unwrap();
    assert_eq!(&seen[..5], b"kept\0");

    // The chunk of a closed and deleted collection exists as long as a process has it mapped.
    let token = chunk.share().unwrap();
    c.close().unwrap();
    Collection::delete(&w, Key::Name("c")).unwrap();
    assert_eq!(bytes(&chunk)[..2], *b"4X");
    let again = Chunk::attach(&session, &token).unwrap();
    again.write(b"Y", 0).unwrap();
    assert_eq!(bytes(&chunk)[..2], *b"YX");
    drop((chunk, reading, again));
    assert_eq!(errno(Chunk::attach(&session, &token)), Errno::NOENT);
    drop((c, w, session));
    pool.assert_whole();
}

#[test]
fn other_processes_attach_it_and_may_die() {
    let pool = TestPool::new("tokens");
    let session = pool.session();
    let mut one = Other::start(&pool);
    let mut other = Other::start(&pool);
    let mine = Chunk::allocate(&session, 10_000).unwrap();
    assert_eq!(bytes(&mine), vec![0; 10_000]);
    let token = hex(&mine.share().unwrap());
    assert_eq!(one.ask(&format!("attach {token}")), "attached");
    assert_eq!(one.ask("put 7"), "put");
    assert_eq!(bytes(&mine)[0], 7);

    // The buffer of a killed process exists as long as another process has it mapped.
    let theirs = one.ask("allocate");
    assert_eq!(one.ask("put 9"), "put");
    assert_eq!(other.ask(&format!("attach {theirs}")), "attached");
    drop(one);
    let fs = Fs::new(Arc::new(Pool::open("tokens").unwrap()));
    fs.store().recovery().reap().unwrap();
    assert_eq!(other.ask("get"), "9");
    let attached = Chunk::attach(&session, &unhex(&theirs)).unwrap();
    assert_eq!(bytes(&attached)[0], 9);
    drop((attached, other));
    fs.store().recovery().reap().unwrap();
    assert_eq!(
        errno(Chunk::attach(&session, &unhex(&theirs))),
        Errno::NOENT
    );
    // After the end of its last mapping, the buffer's space is free again.
    let (_, used) = fs.pool().capacity();
    drop(mine);
    let after = fs.pool().capacity().1;
    assert!(after < used, "{after} of {used}");
    drop((session, fs));
    pool.assert_whole();
}

#[test]
fn what_is_refused() {
    let pool = TestPool::new("refused");
    let session = pool.session();
    let w = Workspace::create(&session, "w", &Meta::new()).unwrap();
    let create = |name: &str, controls: &str| {
        let with = Options {
            controls: controls.parse::<Declared>().unwrap().resolve(),
            ..Options::default()
        };
        let c = Collection::create(&w, name, &with).unwrap();
        c.write(b"bytes", 0).unwrap();
        c
    };
    let c = create("c", "");
    for (at, len) in [(0, 0), (0, 6), (5, 1), (u64::MAX, 2)] {
        assert_eq!(errno(Chunk::map(&c, at, len, Access::Read)), Errno::INVAL);
    }
    let log = create("log", "mutability=append");
    assert_eq!(errno(Chunk::map(&log, 0, 5, Access::Write)), Errno::PERM);
    assert!(Chunk::map(&log, 0, 5, Access::Read).is_ok());
    let own = create("own", "parallelism=exclusive");
    let token = Chunk::map(&own, 0, 5, Access::Read)
        .unwrap()
        .share()
        .unwrap();
    let mut other = Other::start(&pool);
    assert_eq!(
        other.ask(&format!("attach {}", hex(&token))),
        format!("errno {}", libc::EBUSY)
    );

    // A collection that is mapped for writing isn't laminated before the mapping ends.
    let checkpoint = create("checkpoint", "mutability=immutable");
    let writing = Chunk::map(&checkpoint, 0, 5, Access::Write).unwrap();
    checkpoint.close().unwrap();
    writing.write(b"B", 0).unwrap();
    drop(writing);
    let checkpoint = Collection::open(&w, Key::Name("checkpoint")).unwrap();
    assert_eq!(
        errno(Chunk::map(&checkpoint, 0, 5, Access::Write)),
        Errno::ACCESS
    );
    let reading = Chunk::map(&checkpoint, 0, 5, Access::Read).unwrap();
    assert_eq!(bytes(&reading), b"Bytes");

    let in_memory = Collection::create(&w, "m", &options("memory", &[])).unwrap();
    in_memory.write(b"bytes", 0).unwrap();
    assert_eq!(
        errno(Chunk::map(&in_memory, 0, 5, Access::Read)),
        Errno::OPNOTSUPP
    );
    let without = Session::open("memory").unwrap();
    assert_eq!(errno(Chunk::allocate(&without, 1)), Errno::OPNOTSUPP);
    assert_eq!(errno(Chunk::attach(&without, &token)), Errno::OPNOTSUPP);
    assert_eq!(
        errno(Chunk::attach(&session, &Token([1; 48]))),
        Errno::INVAL
    );
    let mut strange = token;
    strange.0[10] ^= 1;
    assert_eq!(errno(Chunk::attach(&session, &strange)), Errno::XDEV);
    let mut strange = token;
    strange.0[4] ^= 1;
    assert_eq!(errno(Chunk::attach(&session, &strange)), Errno::REMOTE);
    for at in [24, 31, 39, 47] {
        let mut strange = token;
        strange.0[at] ^= 0x55;
        assert!(Chunk::attach(&session, &strange).is_err(), "byte {at}");
    }
    // More bytes than the pool has.
    assert_eq!(errno(Chunk::allocate(&session, 1 << 30)), Errno::NOSPC);
    // SAFETY: the child makes only the calls under test, which fail in a forked child before they
    // touch a lock, and then ends by `_exit`.
    let forked = unsafe { libc::fork() };
    if forked == 0 {
        let refused = errno(reading.read(&mut [0], 0)) == Errno::PERM
            && reading.share().is_err()
            && Chunk::allocate(&session, 1).is_err();
        // SAFETY: `_exit` ends the child without running destructors.
        unsafe { libc::_exit(i32::from(!refused)) }
    }
    let mut status = 0;
    // SAFETY: the kernel writes only to `status`, a local variable.
    let waited = unsafe { libc::waitpid(forked, &mut status, 0) };
    assert_eq!((waited, status), (forked, 0));
    drop((
        c, log, own, checkpoint, reading, in_memory, other, w, session,
    ));
    pool.assert_whole();
}
