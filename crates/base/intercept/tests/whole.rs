//! Unmodified programs under the `passthrough` library, in all its modes, must behave as without
//! the library. Each process has a time limit.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
const MODES: [&str; 4] = ["pass", "raw", "fd", "watch"];

/// Returns the path of the `passthrough` library, in cargo's directory of examples beside the
/// tests.
fn library() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let file = exe
        .parent()
        .unwrap()
        .parent()
        .unwrap()
        .join("examples/libpassthrough.so");
    assert!(file.exists(), "{} is built by cargo test", file.display());
    file
}

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let path =
            std::env::temp_dir().join(format!("forebay-whole-{name}-{}", std::process::id()));
        std::fs::create_dir_all(path.join("cache")).unwrap();
        Dir(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(dir: &Dir, mode: Option<&str>, program: &str, args: &[&str]) -> Output {
    let (out, err) = (dir.0.join("out"), dir.0.join("err"));
    let mut command = Command::new(program);
    command.args(args).current_dir(&dir.0).stdin(Stdio::null());
    command
        .stdout(std::fs::File::create(&out).unwrap())
        .stderr(std::fs::File::create(&err).unwrap());
    if let Some(mode) = mode {
        command
            .env("LD_PRELOAD", library())
            .env("FB_MODE", mode)
            .env("FB_CACHE", dir.0.join("cache"));
    }
    let mut child = command.spawn().unwrap();
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > LIMIT {
            child.kill().unwrap();
            panic!(
                "{program} {args:?} in mode {mode:?} didn't end; {}",
                std::fs::read_to_string(err).unwrap()
            );
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    Output {
        status,
        stdout: std::fs::read(out).unwrap(),
        stderr: std::fs::read(err).unwrap(),
    }
}

fn has(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
}

/// Checks that a program's output and status are the same with and without the library, in each
/// mode.
fn same(name: &str, program: &str, args: &[&str]) {
    if !has(program) {
        eprintln!("{program} isn't here: not tested");
        return;
    }
    let dir = Dir::new(name);
    let plain = run(&dir, None, program, args);
    for mode in MODES {
        let with = run(&dir, Some(mode), program, args);
        let err = String::from_utf8_lossy(&with.stderr).into_owned();
        assert_eq!(
            plain.status.code(),
            with.status.code(),
            "{program} {mode}: {:?} {err}",
            with.status
        );
        assert_eq!(
            String::from_utf8_lossy(&plain.stdout),
            String::from_utf8_lossy(&with.stdout),
            "{program} {mode}"
        );
        assert_eq!(
            String::from_utf8_lossy(&plain.stderr),
            err,
            "{program} {mode}"
        );
    }
}

fn compiled(compiler: &str, source: &str, flags: &[&str]) {
    let dir = Dir::new(&format!("{source}-{}", compiler.len() + flags.len()));
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/c")
        .join(source);
    let mut args = vec!["-O1", "-g0", "-pthread", "-w", "-o", "program"];
    args.extend_from_slice(flags);
    args.push(file.to_str().unwrap());
    let built = run(&dir, None, compiler, &args);
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let program = dir.0.join("program");
    for mode in MODES {
        for _ in 0..3 {
            let with = run(&dir, Some(mode), program.to_str().unwrap(), &[]);
            let err = String::from_utf8_lossy(&with.stderr).into_owned();
            assert!(
                with.status.success() && with.stdout == b"ok\n",
                "{source} {mode}: {:?} {err}",
                with.status
            );
        }
    }
}

#[test]
fn rewrites_and_reports() {
    let dir = Dir::new("report");
    for cached in ["cached false", "cached true"] {
        let preload = library();
        let out = run(
            &dir,
            None,
            "env",
            &[
                &format!("LD_PRELOAD={}", preload.display()),
                &format!("FB_CACHE={}/cache", dir.0.display()),
                "FB_REPORT=1",
                "cat",
                "/magic",
            ],
        );
        let err = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{err}");
        assert_eq!(out.stdout, std::fs::read("/etc/hostname").unwrap());
        assert!(
            err.contains("libc.so.6: found") && err.contains("ld-linux") && err.contains(cached),
            "{err}"
        );
        assert!(
            !err.contains("missed [1") && err.contains("unknown 0"),
            "{err}"
        );
        println!("{err}");
    }
    // A cache of random bytes is replaced.
    for file in std::fs::read_dir(dir.0.join("cache")).unwrap() {
        std::fs::write(file.unwrap().path(), [0x5a; 30000]).unwrap();
    }
    let out = run(&dir, Some("pass"), "cat", &["/magic"]);
    assert!(out.status.success() && !out.stdout.is_empty());
    let files = std::fs::read_dir(dir.0.join("cache")).unwrap();
    let files: Vec<PathBuf> = files.map(|f| f.unwrap().path()).collect();
    // The table of libraries without sites isn't checked: any content of it is valid.
    let sites = files.iter().filter(|f| !f.ends_with("sites-none-v1"));
    for file in sites {
        assert!(std::fs::read(file).unwrap().starts_with(b"FBSITES1"));
    }
}

#[test]
fn ls() {
    same("ls", "ls", &["-lR", "/etc", "/usr/lib/python3"]);
}

#[test]
fn bash() {
    let script = r#"
        set -e
        a=$(echo one; (echo two; exit 3) || echo "st $?")
        echo "$a" | sed s/o/0/ | tr a-z A-Z > f; cat < f; cat f >> g; wc -l < g
        exec 5> h; echo five >&5; exec 5>&-; cat h
        for i in 1 2 3 4 5 6 7 8; do (echo $i) & done | sort; wait
        cat <(echo proc) - <<< here
        kill -0 $$; trap 'echo trapped' USR1; kill -USR1 $$
        x() { return 4; }; x || echo $?
        printf '%s\n' f g h | xargs -n1 -P3 md5sum | sort; rm f g h; ls
        read -t 0.05 line < <(sleep 1) || echo timeout
        timeout 0.1 sleep 5 || echo $?
    "#;
    same("bash", "bash", &["-c", script]);
}

#[test]
fn python() {
    let script = r#"
import subprocess, threading, multiprocessing, os, sys, tempfile, signal, time
def run(i, out):
    out[i] = subprocess.run(['echo', str(i)], capture_output=True, text=True).stdout
out = {}
ts = [threading.Thread(target=run, args=(i, out)) for i in range(12)]
[t.start() for t in ts]; [t.join() for t in ts]
print(sorted(out.items()))
print(subprocess.run('exit 3', shell=True).returncode)
print(subprocess.run(['cat'], input=b'x' * 200000, stdout=subprocess.PIPE).stdout.count(b'x'))
print(subprocess.run(['pwd'], cwd='/', stdout=subprocess.PIPE, preexec_fn=lambda: None).stdout)
pid = os.posix_spawn('/bin/sh', ['sh', '-c', 'exit 6'], os.environ); print(os.waitpid(pid, 0)[1])
def sq(x): return x * x
if __name__ == '__main__':
    with multiprocessing.get_context('fork').Pool(3) as p: print(p.map(sq, range(20)))
    try: subprocess.run(['sleep', '9'], timeout=0.1)
    except subprocess.TimeoutExpired: print('timeout')
    signal.setitimer(signal.ITIMER_REAL, 0.02); signal.signal(signal.SIGALRM, lambda *a: print('alarm')); time.sleep(0.05)
    import ctypes, ssl, sqlite3
    print(len(os.listdir('/usr')) > 3, ctypes.CDLL(None).getpid() == os.getpid())
"#;
    same("python", "python3", &["-c", script]);
}

#[test]
fn perl() {
    same(
        "perl",
        "perl",
        &[
            "-e",
            r#"
        for (1..10) { my $p = fork; if (!$p) { exit 7 } waitpid $p, 0; print $? >> 8, "\n" }
        open my $f, "-|", "echo from; echo child" or die; print <$f>; close $f;
        print `echo back; exit 2`, $? >> 8, "\n"; system "true"; print -s "/etc/passwd", "\n";
        $SIG{ALRM} = sub { die "alarm\n" }; eval { alarm 1; select undef, undef, undef, 5 }; print $@;
    "#,
        ],
    );
}

#[test]
fn git_gcc_make() {
    same("git", "git", &["--version"]);
    let script = r#"
        set -e
        rm -rf w; mkdir w; cd w
        for i in a b c d; do echo "int $i(void) { return 1; }" > $i.c; done
        echo 'int a(void),b(void),c(void),d(void); int main(void) { return a()+b()+c()+d(); }' > m.c
        printf 'p: a.o b.o c.o d.o m.o\n\t@gcc -o $@ $^\n%%.o: %%.c\n\t@gcc -c -o $@ $<\n' > Makefile
        make -s -j2; ./p || echo $?
        git init -q . 2>/dev/null; git -c user.name=a -c user.email=b add . ; git -c user.name=a -c user.email=b commit -qm x
        git ls-files; git status --short; tar cf - *.c | tar tf -
        cp -a . ../w2; diff -r . ../w2 && echo equal; rm -rf ../w2
    "#;
    same("make", "bash", &["-c", script]);
}

#[test]
fn processes() {
    compiled("gcc", "processes.c", &[]);
}

/// The program gets the hook's result instead of a child, and continues.
#[test]
fn children_are_refused() {
    if !has("perl") {
        eprintln!("perl isn't here: not tested");
        return;
    }
    let dir = Dir::new("refused");
    let program = r#"for (1..3) { print fork() // $!{EDQUOT}, "\n"; }"#;
    let with = run(&dir, Some("refuse"), "perl", &["-e", program]);
    assert_eq!(with.status.code(), Some(0));
    let expected = format!("{}\n", libc::EDQUOT).repeat(3);
    assert_eq!(String::from_utf8_lossy(&with.stdout), expected);
}

#[test]
fn signals() {
    compiled("gcc", "signals.c", &["-rdynamic"]);
}

#[test]
fn threads() {
    compiled("gcc", "threads.c", &[]);
}

#[test]
fn cancel_in_c() {
    compiled("gcc", "cancel.c", &[]);
    compiled("gcc", "cancel.c", &["-fexceptions"]);
}

#[test]
fn cancel_in_cpp() {
    compiled("g++", "cancel.c", &["-x", "c++"]);
}

#[test]
fn a_programs_own_calls() {
    compiled("gcc", "own.c", &[]);
    compiled("gcc", "own.c", &["-O2", "-no-pie", "-Wl,--build-id=none"]);
}

#[test]
fn registers() {
    compiled("gcc", "registers.c", &["-Wl,-z,now"]);
}
