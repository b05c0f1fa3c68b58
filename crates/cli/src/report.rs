//! `forebay report`, and `run --report`: one page that shows what a run did, and what would make it
//! faster.
//!
//! While the program runs, a thread writes its events to a file beside the page. Programs wait for
//! that thread, so that no events are lost. Counters are read before and after the run. At the end
//! the page is written, and the file of events is removed.

use crate::args::Report;
use crate::fail::{Fail, code};
use crate::origin;
use crate::output::{json, print_notice, write};
use crate::stats;
use crate::trace::{gather, nodes, paths_of_directories};
use forebay_client::{Pool, places};
use forebay_report::advise::{Advice, advise};
use forebay_report::collect::{Collected, Collector};
use forebay_report::profiles::chosen;
use forebay_report::run::{Facts, MediumFacts, NodeFacts, OriginFacts, Run};
use forebay_report::stream::Recording;
use forebay_report::totals::{Process, Totals};
use forebay_report::{analyse, compare, darshan, html, text};
use forebay_runtime::untrusted::{self, Links};
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Pause between two reads of the rings.
const RING_POLL_INTERVAL: Duration = Duration::from_millis(2);

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |t| t.as_nanos() as u64)
}

/// Maximum size of an earlier report that is read. Bytes.
const MAX_PAGE: u64 = 256 << 20;

/// A run that is being watched.
pub struct Watching {
    page: PathBuf,
    events: PathBuf,
    ends: Arc<AtomicBool>,
    collector: JoinHandle<std::io::Result<Collected>>,
    before: Vec<Process>,
    begin: u64,
    /// When the program ended; None while it runs. Nanoseconds since 1970.
    end: Option<u64>,
}

impl Watching {
    /// Begins to watch the pool, for a page to be written at `page`, where no file may exist yet.
    pub fn begin(pool: &str, page: &Path) -> Result<Watching, Fail> {
        let failed = |path: &Path, e: std::io::Error| {
            Fail::failed(format!("--report: {}: {e}", path.display()))
        };
        let new = |path: &Path| {
            let file = File::options().write(true).create_new(true).open(path);
            file.map_err(|e| failed(path, e))
        };
        let points = chosen(&["io-pattern".into()]).map_err(Fail::failed)?;
        let before = stats::of_all(pool, false)?;
        drop(new(page)?);
        let mut events = page.as_os_str().to_owned();
        events.push(".events");
        let events = PathBuf::from(events);
        let begun = new(&events).and_then(|file| {
            let out = BufWriter::new(file);
            let begun = Collector::new(nodes(pool)?, out, true, &points);
            begun.map_err(|e| failed(&events, e)).inspect_err(|_| {
                let _ = std::fs::remove_file(&events);
            })
        });
        let mut collector = begun.inspect_err(|_| {
            let _ = std::fs::remove_file(page);
        })?;
        let ends = Arc::new(AtomicBool::new(false));
        let (ending, name) = (ends.clone(), pool.to_owned());
        let thread = std::thread::Builder::new().name("report".into());
        let collector = thread.spawn(move || {
            while !ending.load(Acquire) && collector.failed.is_none() {
                collector.turn();
                std::thread::sleep(RING_POLL_INTERVAL);
            }
            collector.finish(paths_of_directories(&name))
        });
        let collector = collector.map_err(|e| failed(&events, e))?;
        Ok(Watching {
            page: page.to_owned(),
            events,
            ends,
            collector,
            before,
            begin: now(),
            end: None,
        })
    }

    /// Records that the program has ended: later work isn't counted as the program's time.
    pub fn program_ended(&mut self) {
        self.end = Some(now());
    }

    /// Ends watching, and writes the page. A failure is printed, and doesn't change the run's
    /// outcome.
    pub fn end(self, pool: &Pool, command: String) {
        let end = self.end.unwrap_or_else(now);
        self.ends.store(true, Release);
        let collected = self.collector.join();
        let made = (|| {
            match collected {
                Ok(Ok(Collected { refused: 1.., .. })) => print_notice(
                    "--report: some processes had no room for events: too many at a time; \
                     the page is incomplete",
                ),
                Ok(Ok(_)) => {}
                Ok(Err(e)) => print_notice(format!(
                    "--report: {}: {e}; the page is incomplete",
                    self.events.display()
                )),
                Err(_) => print_notice("--report: a thread failed; the page is incomplete"),
            }
            let file = File::open(&self.events).map_err(|e| e.to_string())?;
            let recording = Recording::read(file)?;
            let name = &pool.config().name;
            let after = stats::of_all(name, false).map_err(|e| e.message)?;
            let counted = difference(&after, &self.before);
            let facts = Facts {
                title: Some(command.clone()),
                command: Some(command),
                begin: Some(self.begin),
                end: Some(end),
                ..facts(name)
            };
            let run = analyse::run(&recording, &counted, facts);
            let page = html::page(&run, &advise(&run));
            std::fs::write(&self.page, page).map_err(|e| format!("{}: {e}", self.page.display()))
        })();
        let _ = std::fs::remove_file(&self.events);
        match made {
            Ok(()) => print_notice(format!("the report is {}", self.page.display())),
            Err(why) => print_notice(format!("--report: {why}")),
        }
    }

    /// Ends watching without a page, when the program couldn't be run.
    pub fn abandon(self) {
        self.ends.store(true, Release);
        let _ = self.collector.join();
        for path in [&self.page, &self.events] {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Returns each process's counters after a run minus those before it.
fn difference(after: &[Process], before: &[Process]) -> Vec<Process> {
    let earlier = |p: &Process| {
        let same = |b: &&Process| b.node == p.node && b.process == p.process;
        before
            .iter()
            .find(same)
            .map_or(Totals::default(), |b| b.totals.clone())
    };
    let since = |p: &Process| Process {
        totals: p.totals.since(&earlier(p)),
        ..p.clone()
    };
    after.iter().map(since).collect()
}

/// Returns nodes, media and mount prefix of the pool, as far as its nodes on this host know them.
fn facts(name: &str) -> Facts {
    let mut facts = Facts::default();
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    for place in places(name) {
        let node = place.node.unwrap_or(0);
        facts.nodes.push(NodeFacts {
            node,
            name: Some(host.clone()),
        });
        let Ok(pool) = Pool::open_dir(&place.dir) else {
            continue;
        };
        facts.mount.get_or_insert(pool.config().mount.clone());
        if facts.origin.is_none()
            && let Some(status) = origin::status_of(&pool)
        {
            facts.origin = Some(OriginFacts {
                path: status.origin,
                fetched_files: status.fetched_files,
                fetched_bytes: status.fetched_bytes,
                written_files: status.written_files,
                written_bytes: status.written_bytes,
            });
        }
        facts.media.extend(pool.usage().iter().map(|u| MediumFacts {
            node,
            kind: u.spec.to_string(),
            capacity: Some(u.capacity),
            peak: Some(u.used),
        }));
    }
    facts
}

pub fn report(pool: &str, a: &Report) -> Result<u8, Fail> {
    if let [before, after] = &a.compare[..] {
        let (before, after) = (run_of(before)?, run_of(after)?);
        return match &a.to {
            Some(to) => put(to, &compare::page(&before, &after)),
            None => print(&compare::text(&before, &after)),
        };
    }
    let run = match (&a.darshan, &a.page) {
        (Some(path), _) => {
            let failed = |e: String| Fail::failed(format!("{}: {e}", path.display()));
            let file = File::open(path).map_err(|e| failed(e.to_string()))?;
            darshan::read(BufReader::new(file)).map_err(failed)?
        }
        (None, Some(path)) => run_of(path)?,
        (None, None) => {
            let (recording, notes) = gather(pool, a.from.as_deref())?;
            notes.iter().for_each(print_notice);
            let counted = match a.from {
                Some(_) => Vec::new(),
                None => stats::of_all(pool, false)?,
            };
            analyse::run(&recording, &counted, facts(pool))
        }
    };
    let advice = advise(&run);
    if let Some(to) = &a.rules {
        put(to, &advice.rules(false))?;
    }
    match (a.json, &a.to) {
        (true, _) => json(&WithAdvice {
            run: &run,
            advice: &advice,
        })?,
        (false, Some(to)) => return put(to, &html::page(&run, &advice)),
        (false, None) => return print(&words(&advice)),
    }
    Ok(code::OK)
}

/// A run and its advice, as printed for `--json`.
#[derive(serde::Serialize)]
struct WithAdvice<'a> {
    #[serde(flatten)]
    run: &'a Run,
    advice: &'a Advice,
}

/// Formats the advice for a terminal.
fn words(advice: &Advice) -> String {
    let mut words = String::new();
    for p in &advice.proposals {
        words += &format!(
            "{}: {} = {}\n  because {}\n  saves   {}\n  forbids {}\n",
            text::shown(&p.path),
            p.control,
            p.value,
            text::shown(&p.why),
            text::shown(&p.saves.reasoning),
            text::shown(&p.forbids)
        );
    }
    let rules = advice.rules(false);
    if !rules.is_empty() {
        words += &format!("\nAs a file of rules, for forebay up --rules:\n\n{rules}");
    }
    for note in &advice.notes {
        words += &format!("{}\n", text::shown(note));
    }
    let mut begun = words;
    if advice.proposals.is_empty() {
        begun = format!("nothing to propose: no control would save this run anything\n{begun}");
    }
    for p in &advice.fitting {
        begun += &format!(
            "{} = {} fits {}, for safety; it saves this run nothing\n",
            p.control,
            p.value,
            text::shown(&p.path)
        );
    }
    begun
}

fn print(text: &str) -> Result<u8, Fail> {
    write(text.as_bytes())?;
    Ok(code::OK)
}

fn put(to: &Path, page: &str) -> Result<u8, Fail> {
    std::fs::write(to, page).map_err(|e| Fail::failed(format!("{}: {e}", to.display())))?;
    Ok(code::OK)
}

fn run_of(path: &Path) -> Result<Run, Fail> {
    let failed = |e: String| Fail::failed(format!("{}: {e}", path.display()));
    let text =
        untrusted::read_text(path, Links::Named, MAX_PAGE).map_err(|e| failed(e.to_string()))?;
    html::run_of(&text).map_err(failed)
}
