//! `forebay-simulate`: runs the daemons and processes of a pool of several nodes on one machine, in
//! virtual time, over a simulated network. A seed decides everything: which task runs when, how
//! long messages take, which of them are lost, which process is killed. The checker of histories
//! (`forebay-check`) judges the result. A seed that fails once fails each time.
//!
//! ```text
//! outer process            watches, prints, removes what is left
//!   first process of a run   run.rs: plan, faults, driver of the checker
//!     daemon of each node      the real one, but for its transport: network.rs
//!     workers                  operations by face.rs
//! ```
//! All of them share [`world`]: the time and the token. [`taken`] replaces libc's functions for
//! waiting and clocks. See docs/internals/simulator.md.

mod face;
mod network;
mod real;
mod run;
mod taken;
mod world;

use run::Plan;
use std::collections::BTreeMap;
use std::io::{Read, Seek};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Maximum real time of a run.
const MAX_RUN_TIME: Duration = Duration::from_secs(100);

const HELP: &str = "\
forebay-simulate: a pool of several nodes in virtual time, over a simulated network; seeds decide what happens

usage: forebay-simulate [--seeds A..B | --seed N | --seconds N] [options]

  --seeds A..B      these seeds, B included (1..20)
  --seed N          this one, and tell all of it
  --seconds N       new seeds for so long
  --from N          the first of the new seeds (from the clock)
  --most-seconds N  stop after so long, even if seeds are left
  --jobs N          so many at once (2)
  --phases N        phases of each run (24)
  --until-found     stop at the first seed that fails
  --messages        print each message between daemons, where a run's story is printed
  --again N         run the first N seeds twice: they must do the same (0)
  --plant NAME      with this fault planted: lost-reply, twice, lock-kept, stale-cache, half-rename
  --planted         plant each of these in turn, and run seeds until it is found, 600 s at most
  --plan            say what each seed decides
";

/// Names of the faults that may be planted (`forebay_placement::planted`).
const PLANTS: [&str; 5] = [
    "lost-reply",
    "twice",
    "lock-kept",
    "stale-cache",
    "half-rename",
];

#[derive(Clone)]
struct Arguments {
    first: u64,
    last: u64,
    until: Option<Instant>,
    jobs: usize,
    phases: Option<u64>,
    verbose: bool,
    until_found: bool,
    plan: bool,
    plant: Option<String>,
    planted: bool,
    again: u64,
    messages: bool,
    quiet: bool,
}

fn parse() -> Result<Option<Arguments>, String> {
    let mut a = Arguments {
        first: 1,
        last: 20,
        until: None,
        jobs: 2,
        phases: None,
        verbose: false,
        until_found: false,
        plan: false,
        plant: None,
        planted: false,
        again: 0,
        messages: false,
        quiet: false,
    };
    let mut words = std::env::args().skip(1);
    let mut from = None;
    let mut forever = false;
    while let Some(word) = words.next() {
        let mut number = || -> Result<u64, String> {
            let value = words.next().ok_or(format!("{word} wants a value"))?;
            value
                .parse()
                .map_err(|_| format!("{word} wants a number, not {value:?}"))
        };
        match word.as_str() {
            "--help" | "-h" => return Ok(None),
            "--seeds" => {
                let value = words.next().ok_or("--seeds wants A..B")?;
                let both = value
                    .split_once("..")
                    .and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
                (a.first, a.last) = both.ok_or(format!("--seeds wants A..B, not {value:?}"))?;
            }
            "--seed" => {
                a.first = number()?;
                (a.last, a.verbose) = (a.first, true);
            }
            "--seconds" => {
                a.until = Some(Instant::now() + Duration::from_secs(number()?));
                forever = true;
            }
            "--most-seconds" => a.until = Some(Instant::now() + Duration::from_secs(number()?)),
            "--from" => from = Some(number()?),
            "--jobs" => a.jobs = number()?.clamp(1, 64) as usize,
            "--phases" => a.phases = Some(number()?),
            "--until-found" => a.until_found = true,
            "--plan" => a.plan = true,
            "--planted" => a.planted = true,
            "--messages" => a.messages = true,
            "--again" => a.again = number()?,
            "--plant" => a.plant = Some(words.next().ok_or("--plant wants a name")?),
            _ => return Err(format!("unknown option {word:?}")),
        }
    }
    if forever {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        a.first = from.unwrap_or(now.map_or(1, |t| t.as_millis() as u64 % 1_000_000_000));
        a.last = u64::MAX;
    }
    Ok(Some(a))
}

/// Starts this program again without address randomisation, so that the addresses are the same in
/// each run of a seed.
fn fixed_addresses() {
    // SAFETY: personality takes no pointer.
    let now = unsafe { libc::personality(0xffff_ffff) };
    if now >= 0 && now & libc::ADDR_NO_RANDOMIZE == 0 {
        // SAFETY: personality takes no pointer.
        let set = unsafe { libc::personality((now | libc::ADDR_NO_RANDOMIZE) as libc::c_ulong) };
        if set >= 0 {
            use std::os::unix::process::CommandExt;
            let me = std::env::current_exe().expect("this program has a path");
            // `exec` returns only on failure. Then addresses stay random.
            let _ = std::process::Command::new(me)
                .args(std::env::args_os().skip(1))
                .exec();
        }
    }
}

/// Gives the run its own process ids, from 1 on, if the system allows that.
fn own_numbers() -> bool {
    // SAFETY: unshare takes no pointer.
    unsafe { libc::unshare(libc::CLONE_NEWPID | libc::CLONE_NEWNS) == 0 }
}

/// Mounts a /proc for the run's own PID namespace.
fn mount_proc() -> bool {
    let none = std::ptr::null();
    // SAFETY: all pointers are C strings or null, as mount(2) allows for these flags.
    unsafe {
        let private = libc::MS_REC | libc::MS_PRIVATE;
        libc::mount(none, c"/".as_ptr(), none, private, none.cast()) == 0
            && libc::mount(
                c"proc".as_ptr(),
                c"/proc".as_ptr(),
                c"proc".as_ptr(),
                0,
                none.cast(),
            ) == 0
    }
}

fn wait_for(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: waitpid writes only to `status`.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    if libc::WIFEXITED(status) {
        libc::WEXITSTATUS(status)
    } else {
        4
    }
}

fn exit(code: i32) -> ! {
    use std::io::Write;
    let _ = std::io::stdout().flush();
    // SAFETY: ends this process.
    unsafe { libc::_exit(code) }
}

struct Running {
    seed: u64,
    pid: i32,
    since: Instant,
    log: std::fs::File,
    home: std::path::PathBuf,
}

/// Starts a run in its own process.
fn start(plan: &Plan, base: &Path, plant: Option<&str>) -> std::io::Result<Running> {
    let home = base.join(plan.seed.to_string());
    std::fs::create_dir_all(&home)?;
    let path = home.join("log");
    let log = std::fs::File::options()
        .read(true)
        .append(true)
        .create(true)
        .open(&path)?;
    // SAFETY: this process has one thread, so the child inherits no held lock.
    let pid = unsafe { libc::fork() };
    if pid != 0 {
        return Ok(Running {
            seed: plan.seed,
            pid,
            since: Instant::now(),
            log,
            home,
        });
    }
    // SAFETY: descriptors of this process; one thread.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::dup2(log.as_raw_fd(), 1);
        libc::dup2(log.as_raw_fd(), 2);
        std::env::set_var("FOREBAY_HOME", home.join("pools"));
        std::env::set_var("FOREBAY_PLANT", plant.unwrap_or(""));
    }
    let own = own_numbers();
    // SAFETY: this process has one thread, so the child inherits no held lock.
    let first = unsafe { libc::fork() };
    if first == 0 {
        // SAFETY: this prctl takes no pointer.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        if own && !mount_proc() {
            println!("/proc can't be mounted");
            exit(3);
        }
        exit(i32::from(!run::run(plan)));
    }
    exit(wait_for(first))
}

fn finished(run: &Running) -> Option<i32> {
    let mut status = 0;
    // SAFETY: waitpid writes only to `status`.
    match unsafe { libc::waitpid(run.pid, &mut status, libc::WNOHANG) } {
        0 if run.since.elapsed() > MAX_RUN_TIME => {
            // SAFETY: kill takes no pointer. The run's child processes end with it.
            unsafe { libc::kill(run.pid, libc::SIGKILL) };
            Some(wait_for(run.pid).max(5))
        }
        0 => None,
        _ if libc::WIFEXITED(status) => Some(libc::WEXITSTATUS(status)),
        _ => Some(4),
    }
}

fn main() -> ExitCode {
    let arguments = match parse() {
        Ok(Some(a)) => a,
        Ok(None) => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(e) => {
            eprintln!("forebay-simulate: {e} (--help says what there is)");
            return ExitCode::from(2);
        }
    };
    fixed_addresses();
    if arguments.planted {
        return planted(&arguments);
    }
    let again = arguments.first + arguments.again.min(arguments.last - arguments.first + 1);
    let swept = sweep(&arguments, None).and_then(|first| {
        // Runs some of the seeds a second time: they must give the same traces.
        let second = sweep(
            &Arguments {
                last: again.wrapping_sub(1),
                verbose: false,
                ..arguments.clone()
            },
            None,
        );
        let second = if arguments.again > 0 {
            second?
        } else {
            Swept::default()
        };
        let same = second
            .traces
            .iter()
            .all(|(seed, trace)| first.traces.get(seed) == Some(trace));
        Ok((first, same))
    });
    match swept {
        Ok((swept, same)) => {
            let (n, failed) = (swept.traces.len(), &swept.failed);
            println!(
                "{n} seeds in {:.0} s, {} failed {failed:?}",
                swept.seconds,
                failed.len()
            );
            if !same {
                println!("the same seeds, run again, did something else");
            }
            ExitCode::from(u8::from(!failed.is_empty() || !same))
        }
        Err(e) => {
            eprintln!("forebay-simulate: a run can't be started: {e}");
            ExitCode::from(2)
        }
    }
}

/// For each fault, plants it and runs seeds until a run finds it.
fn planted(arguments: &Arguments) -> ExitCode {
    let mut all = true;
    for plant in PLANTS {
        let longest = Duration::from_secs(600);
        let arguments = Arguments {
            first: arguments.first,
            last: u64::MAX,
            until: Some(Instant::now() + longest),
            until_found: true,
            quiet: true,
            ..arguments.clone()
        };
        match sweep(&arguments, Some(plant)) {
            Ok(swept) if !swept.failed.is_empty() => println!(
                "{plant}: found by seed {} after {:.0} s, {} seeds",
                swept.failed[0],
                swept.seconds,
                swept.traces.len()
            ),
            Ok(_) => {
                println!("{plant}: not found in {} s", longest.as_secs());
                all = false;
            }
            Err(e) => {
                eprintln!("forebay-simulate: a run can't be started: {e}");
                return ExitCode::from(2);
            }
        }
    }
    ExitCode::from(u8::from(!all))
}

/// The results of running some seeds.
#[derive(Default)]
struct Swept {
    failed: Vec<u64>,
    /// The hash of the decisions of each seed.
    traces: BTreeMap<u64, String>,
    seconds: f64,
}

/// Runs the seeds, several at once.
fn sweep(arguments: &Arguments, plant: Option<&str>) -> std::io::Result<Swept> {
    let base = Path::new("/dev/shm").join(format!("forebay-simulate-{}", std::process::id()));
    let plant = plant.or(arguments.plant.as_deref());
    let (begun, mut next, mut swept) = (Instant::now(), arguments.first, Swept::default());
    let mut running: Vec<Running> = Vec::new();
    loop {
        let over = arguments.until.is_some_and(|until| Instant::now() >= until)
            || arguments.until_found && !swept.failed.is_empty();
        while !over && next <= arguments.last && running.len() < arguments.jobs {
            let mut plan = Plan::of(next);
            plan.tell = arguments.messages;
            plan.phases = arguments.phases.unwrap_or(plan.phases);
            if arguments.plan {
                println!("{plan:?}");
            }
            running.push(start(&plan, &base, plant)?);
            next += 1;
        }
        if running.is_empty() {
            break;
        }
        running.retain_mut(|run| {
            let Some(status) = finished(run) else {
                return true;
            };
            let trace = print(run, status, arguments);
            swept.traces.insert(run.seed, trace);
            if status != 0 {
                swept.failed.push(run.seed);
            }
            if status != 0 && !arguments.quiet {
                let phases = arguments
                    .phases
                    .map_or(String::new(), |n| format!(" --phases {n}"));
                let plant = plant.map_or(String::new(), |name| format!(" --plant {name}"));
                let (seed, seconds) = (run.seed, begun.elapsed().as_secs_f64());
                println!(
                    "seed {seed} fails ({seconds:.0} s after the start); again: \
                     target/simulate/forebay-simulate --seed {seed}{phases}{plant}"
                );
            }
            let _ = std::fs::remove_dir_all(&run.home);
            false
        });
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = std::fs::remove_dir_all(&base);
    swept.seconds = begun.elapsed().as_secs_f64();
    Ok(swept)
}

/// Prints the output of a run: all of it, or its end. Returns the run's hash of decisions.
fn print(run: &mut Running, status: i32, arguments: &Arguments) -> String {
    let mut text = String::new();
    let _ = run.log.rewind();
    let _ = run.log.read_to_string(&mut text);
    if status == 5 && !arguments.quiet {
        println!("the run took longer than {} s", MAX_RUN_TIME.as_secs());
    }
    let lines: Vec<&str> = text.lines().collect();
    if status != 0 && !arguments.quiet || arguments.verbose {
        let from = if arguments.verbose {
            0
        } else {
            lines.len().saturating_sub(120)
        };
        lines[from..].iter().for_each(|line| println!("{line}"));
    }
    let trace = lines.iter().rev().find(|l| l.contains(", trace "));
    trace.map_or(String::new(), |l| (*l).to_owned())
}
