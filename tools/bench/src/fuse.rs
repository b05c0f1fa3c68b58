//! Measures the FUSE face (`forebay mount`), compared with a trivial FUSE file system that passes
//! requests on to a directory of `/dev/shm`; and, for orientation, with that directory itself.

use crate::children;
use crate::options::Options;
use crate::pool::{Pool, Side};
use crate::report::{self, Figure, Results};
use crate::sys;
use crate::workloads::{MOUNT, Unit};
use forebay_slowfs::unmount_lazily;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Maximum time of one run of one row.
const LIMIT: Duration = Duration::from_secs(30);
const MEDIA: &str = "memory:1G";
const DEVICE: &str = "/dev/fuse";
/// Number of threads of the reference, which the kernel wakes in turn. A single thread would sleep
/// between requests; then one program gets a third of the rate, and four programs get no more.
const THREADS: usize = 2;

type Row = (&'static str, &'static str, Unit, usize, [usize; 2]);
/// The rows: name, worker, unit, number of files or blocks, passes in the quick form and in the
/// full one.
const ROWS: &[Row] = &[
    ("stat", "stat", Unit::Operations, 500, [4, 20]),
    (
        "create+close+unlink",
        "create-unlink",
        Unit::Operations,
        500,
        [2, 10],
    ),
    ("open+close", "open-close", Unit::Operations, 500, [4, 20]),
    (
        "read 4 KiB",
        "rand-read-4k",
        Unit::Operations,
        1024,
        [4, 20],
    ),
    (
        "write 4 KiB",
        "rand-write-4k",
        Unit::Operations,
        1024,
        [4, 20],
    ),
    ("read 1 MiB", "read-1m", Unit::Bytes, 64, [4, 16]),
    ("write 1 MiB", "overwrite-1m", Unit::Bytes, 64, [4, 16]),
    ("list 10000", "list", Unit::Operations, 10_000, [4, 20]),
];

/// Number of processes in the second measurement of the rows that are measured with several
/// processes, too.
const TEAM: usize = 4;

/// Which file system a run uses.
#[derive(Clone, Copy)]
enum Place {
    Plain,
    Passed,
    Ours,
}

/// The mounts and the pool to be measured. Fields are dropped in this order: mounts first.
struct Faces<'a> {
    ours: Mount,
    passed: Mount,
    pool: Pool,
    /// The directory that the pass-through file system shows.
    source: PathBuf,
    options: &'a Options,
    runs: usize,
}

/// A mount, unmounted when dropped.
struct Mount {
    dir: PathBuf,
    /// The process that serves the mount, if it is a child of this one. It ends when its input
    /// ends.
    server: Option<Child>,
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.take_away();
    }
}

impl Mount {
    fn at(dir: PathBuf) -> Mount {
        Mount { dir, server: None }
    }

    fn take_away(&mut self) {
        unmount_lazily(&self.dir);
        let Some(mut server) = self.server.take() else {
            return;
        };
        drop(server.stdin.take());
        let deadline = Instant::now() + Duration::from_secs(5);
        while Instant::now() < deadline {
            match server.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(2)),
                _ => return,
            }
        }
        let _ = server.kill();
        let _ = server.wait();
    }
}

/// Serves the reference: a file system that passes requests on to `source`, and caches nothing.
/// Prints `ready`. Blocks until standard input ends.
pub fn passthrough(source: &str, dir: &str) -> Result<(), String> {
    sys::leave_session();
    let options = forebay_slowfs::Options {
        threads: THREADS,
        caches: false,
        effects: None,
    };
    forebay_slowfs::mount(source, dir, options)
}

/// Returns the reason why nothing can be mounted here, if there is one.
fn obstacle() -> Option<String> {
    if !Path::new(DEVICE).exists() {
        return Some(format!("there is no {DEVICE} here"));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |dir: PathBuf| dir.join("fusermount3").is_file();
    if !sys::is_root() && !std::env::split_paths(&path).any(is_there) {
        return Some("ordinary users need fusermount3 to mount (package fuse3)".into());
    }
    None
}

/// Measures all rows, if the options select them and something can be mounted.
pub fn measure(options: &Options, results: &mut Results) -> Result<(), String> {
    if !options.wants(MOUNT.0) {
        return Ok(());
    }
    if let Some(obstacle) = obstacle() {
        println!("\nfuse: skipped, {obstacle}");
        return Ok(());
    }
    let mut faces = match Faces::new(options) {
        Ok(faces) => faces,
        Err(_) if sys::interrupted() => return Err("interrupted".into()),
        Err(e) => return Err(format!("fuse: {e}")),
    };
    report::fuse_heading();
    let alone = ROWS.iter().map(|row| (row, 1));
    let small = |row: &&Row| row.2 == Unit::Operations && row.1 != "list";
    let together = ROWS.iter().filter(small).map(|row| (row, TEAM));
    for (row, procs) in alone.chain(together) {
        let figure = faces.row(row, procs);
        if sys::interrupted() {
            return Err("interrupted".into());
        }
        report::fuse_row(&figure);
        results.fuse.push(figure);
    }
    Ok(())
}

impl Faces<'_> {
    fn new(options: &Options) -> Result<Faces<'_>, String> {
        let mut pool = Pool::new(options, "-fuse", 1, MEDIA)?;
        let made = |name: &str| {
            let dir = pool.plain().join(name);
            let made = std::fs::create_dir(&dir);
            made.map_err(|e| format!("{}: {e}", dir.display()))?;
            Ok::<_, String>(dir)
        };
        let (source, passed, ours) = (made("source")?, made("passed")?, made("ours")?);
        made("plain")?;
        pool.start()?;
        // From here on, an error in a step cleans up the steps before it.
        let faces = Faces {
            ours: Mount::at(ours),
            passed: Mount::at(passed),
            pool,
            source,
            options,
            runs: 0,
        };
        // After its start, a pool makes preparations in the background, which shouldn't be
        // measured.
        std::thread::sleep(Duration::from_secs(1));
        Ok(faces)
    }

    /// Mounts both file systems again. The processor core that serves a mount determines the rates,
    /// and hardly changes while the mount exists; so each repetition needs new mounts.
    fn mount(&mut self) -> Result<(), String> {
        self.ours.take_away();
        self.passed.take_away();
        let mut command = self.pool.forebay();
        command.args(["mount", "--pool", self.pool.name()]);
        command.arg(&self.ours.dir);
        let limit = Duration::from_secs(20);
        children::run_one(command, limit, true, self.pool.scratch())?;
        self.passed.server = Some(self.start_passthrough()?);
        Ok(())
    }

    fn start_passthrough(&self) -> Result<Child, String> {
        let me = std::env::current_exe().map_err(|e| format!("my own program: {e}"))?;
        let mut server = Command::new(me)
            .arg("passthrough")
            .args([&self.source, &self.passed.dir])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("the pass-through file system: {e}"))?;
        let mut line = String::new();
        if let Some(out) = server.stdout.take() {
            let _ = BufReader::new(out).read_line(&mut line);
        }
        if line.trim_end() != "ready" {
            let _ = server.kill();
            let _ = server.wait();
            return Err("the pass-through file system can't be mounted".into());
        }
        Ok(server)
    }

    fn row(&mut self, row: &Row, procs: usize) -> Figure {
        let name = match procs {
            1 => row.0.into(),
            n => format!("{}, {n}", row.0),
        };
        let mut figure = Figure::new(name, row.2.name(), None);
        figure.error = self.repeat(row, procs, &mut figure).err();
        figure
    }

    fn repeat(&mut self, row: &Row, procs: usize, figure: &mut Figure) -> Result<(), String> {
        let &(_, workload, unit, count, passes) = row;
        let passes = passes[usize::from(!self.options.quick)];
        let places = [Place::Plain, Place::Passed, Place::Ours];
        for repetition in 0..2 * self.options.reps - 1 {
            self.mount()?;
            if workload == "list" && repetition == 0 {
                for place in places {
                    self.team(place, "fill", "list", 1, [0, count, 1])?;
                }
            }
            for turn in 0..places.len() {
                let place = places[(turn + repetition) % places.len()];
                self.runs += 1;
                let directory = match workload {
                    "list" => "list".into(),
                    _ => format!("{:05}", self.runs),
                };
                let outcome = self.team(place, workload, &directory, procs, [0, count, passes])?;
                let rates = match place {
                    Place::Plain => &mut figure.beside,
                    Place::Passed => &mut figure.raw,
                    Place::Ours => &mut figure.pool,
                };
                rates.push(unit.shown(outcome.operations / outcome.seconds));
            }
        }
        Ok(())
    }

    fn team(
        &self,
        place: Place,
        workload: &str,
        directory: &str,
        procs: usize,
        numbers: [usize; 3],
    ) -> Result<children::Outcome, String> {
        let base = match place {
            Place::Plain => self.pool.plain().join("plain"),
            Place::Passed => self.passed.dir.clone(),
            Place::Ours => self.ours.dir.clone(),
        };
        let commands = (0..procs).map(|one| {
            // Each process has its own directory.
            let directory = match one {
                0 => directory.into(),
                n => format!("{directory}-{n}"),
            };
            let directory = base.join(directory).display().to_string();
            let mut words = vec![workload.to_string(), directory];
            words.extend(numbers.map(|n| n.to_string()));
            self.pool.worker(Side::Plain, &words)
        });
        let commands = commands.collect();
        children::run_team(commands, LIMIT, self.pool.scratch())
    }
}
