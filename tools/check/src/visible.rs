//! The rules for reads of files with weaker consistency, and a judge of recorded histories.
//!
//! A write is *visible* to a read if it is the reader's own, or if its process had committed it
//! before the read, or before the file was opened ([`Read::since`]). A write is *superseded* by a
//! later write of its process, and by any write that began after it was committed. A read may show
//! any write that has begun and isn't superseded by a visible one. It may show no write only while
//! none is visible. A reader that has seen one write of a process has also seen the process's
//! earlier ones ([`Rules::ordered`]).

use std::collections::HashMap;

/// A time later than all others.
pub const NEVER: u64 = u64::MAX;

/// A cell of a file: the round, which identifies the file, and the cell's number.
pub type Place = (u64, u64);

#[derive(Clone, Copy, Debug)]
pub struct Write {
    pub process: usize,
    pub place: Place,
    /// Not 0, and unique to this write.
    pub value: u64,
    pub begin: u64,
    /// [`NEVER`] if the write failed or its process was killed.
    pub end: u64,
}

/// A commit of everything that the process has written to the file before.
#[derive(Clone, Copy, Debug)]
pub struct Commit {
    pub process: usize,
    pub file: u64,
    pub begin: u64,
    pub end: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct Read {
    pub process: usize,
    pub place: Place,
    /// 0 if the cell shows no write.
    pub value: u64,
    /// Writes committed before this time are visible.
    pub since: u64,
    pub begin: u64,
    pub end: u64,
}

/// All records. The records of each process are in the order of its operations.
#[derive(Default)]
pub struct History {
    pub writes: Vec<Write>,
    pub commits: Vec<Commit>,
    pub reads: Vec<Read>,
}

/// The differences between the kinds of consistency.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// Every write counts as committed when it ends.
    pub at_once: bool,
    /// A later write of a process isn't seen before the process's earlier writes.
    pub ordered: bool,
}

/// Number of reads that showed something that `sequential` wouldn't have shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Number of reads of a value older than a write that had ended before the read began.
    pub older: usize,
}

struct Known<'a> {
    rules: Rules,
    /// Writes, with the times of their commits. The writes of each process are in the order of its
    /// operations.
    writes: Vec<(&'a Write, u64)>,
    by_place: HashMap<Place, Vec<usize>>,
    by_value: HashMap<u64, usize>,
}

impl Known<'_> {
    /// Whether a reader that sees write `by` can't see write `one` any more.
    fn superseded(&self, one: usize, by: usize) -> bool {
        let ((a, committed), (b, _)) = (self.writes[one], self.writes[by]);
        a.process == b.process && one < by || committed < b.begin
    }
}

/// Judges a history.
///
/// # Errors
/// The first impossible result.
pub fn judge(history: &History, rules: Rules) -> Result<Seen, String> {
    let mut commits: HashMap<(usize, u64), Vec<(u64, u64)>> = HashMap::new();
    for c in history.commits.iter().filter(|c| c.end != NEVER) {
        let of = commits.entry((c.process, c.file)).or_default();
        of.push((c.begin, c.end));
    }
    let committed = |w: &Write| match (w.end, rules.at_once) {
        (NEVER, _) => NEVER,
        (end, true) => end,
        (end, false) => {
            let of = commits.get(&(w.process, w.place.0));
            let first = of.into_iter().flatten().find(|c| c.0 >= end);
            first.map_or(NEVER, |c| c.1)
        }
    };
    let mut known = Known {
        rules,
        writes: history.writes.iter().map(|w| (w, committed(w))).collect(),
        by_place: HashMap::new(),
        by_value: HashMap::new(),
    };
    for (i, (w, _)) in known.writes.iter().enumerate() {
        known.by_place.entry(w.place).or_default().push(i);
        known.by_value.insert(w.value, i);
    }
    // For each process and file: the latest write of each other process that the process has seen,
    // and the time when it saw that write.
    let mut saw: HashMap<(usize, u64, usize), (usize, u64)> = HashMap::new();
    let mut seen = Seen::default();
    for read in &history.reads {
        let older = one(&known, read, &saw).map_err(|e| e + &story(history, read))?;
        seen.older += usize::from(older);
        if let Some(&i) = known.by_value.get(&read.value) {
            let (w, _) = known.writes[i];
            let last = saw.entry((read.process, read.place.0, w.process));
            let last = last.or_insert((i, read.end));
            if last.0 < i {
                *last = (i, read.end);
            }
        }
    }
    Ok(seen)
}

/// Lists the operations on a cell in the 5 ms before a read of it, one per line. Their times are in
/// nanoseconds, relative to the beginning of the read.
fn story(history: &History, read: &Read) -> String {
    const BEFORE: u64 = 5_000_000;
    let near =
        |begin: u64, end: u64| begin <= read.end && (end == NEVER || end + BEFORE >= read.begin);
    let relative = |time: u64| match time {
        NEVER => "?".to_string(),
        _ => (time as i64 - read.begin as i64).to_string(),
    };
    let mut lines = Vec::new();
    for w in history.writes.iter().filter(|w| w.place == read.place) {
        lines.push((w.begin, w.end, w.process, format!("write {}", w.value)));
    }
    for c in history.commits.iter().filter(|c| c.file == read.place.0) {
        lines.push((c.begin, c.end, c.process, "commit".into()));
    }
    for r in history.reads.iter().filter(|r| r.place == read.place) {
        lines.push((r.begin, r.end, r.process, format!("read {}", r.value)));
    }
    lines.retain(|&(begin, end, ..)| near(begin, end));
    lines.sort();
    let mut story = String::from("; in nanoseconds before and after its begin:");
    for (begin, end, process, what) in lines {
        let (begin, end) = (relative(begin), relative(end));
        story += &format!("\n  {begin} to {end}: process {process}: {what}");
    }
    story
}

/// Judges a read. Returns whether it showed something older than `sequential` would have shown.
fn one(
    known: &Known<'_>,
    read: &Read,
    saw: &HashMap<(usize, u64, usize), (usize, u64)>,
) -> Result<bool, String> {
    let shown = match read.value {
        0 => None,
        value => match known.by_value.get(&value) {
            Some(&i) if known.writes[i].0.place == read.place => Some(i),
            Some(&i) => {
                let w = known.writes[i].0;
                return Err(format!(
                    "{w:?} was written elsewhere than {read:?} shows it"
                ));
            }
            None => return Err(format!("nobody has written what this shows: {read:?}")),
        },
    };
    if let Some(i) = shown
        && known.writes[i].0.begin > read.end
    {
        let write = known.writes[i].0;
        return Err(format!("{read:?} shows what is written later: {write:?}"));
    }
    let mut older = false;
    for &by in known.by_place.get(&read.place).into_iter().flatten() {
        let (w, committed) = known.writes[by];
        if shown == Some(by) || shown.is_some_and(|i| !known.superseded(i, by)) {
            continue;
        }
        let own = w.process == read.process && w.end <= read.begin;
        let before = saw.get(&(read.process, read.place.0, w.process));
        // The bytes of one write may appear one after the other.
        let known_by_order = known.rules.ordered
            && before.is_some_and(|&(last, when)| {
                by <= last && w.begin < known.writes[last].0.begin && when <= read.begin
            });
        if own || known_by_order || committed < read.since {
            let why = match (own, known_by_order) {
                (true, _) => "its own",
                (_, true) => "it has seen a later one of that process",
                _ => "it was committed",
            };
            return Err(format!("{read:?} has to show {w:?} or later ({why})"));
        }
        older |= w.end < read.begin;
    }
    Ok(older)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Place = (1, 0);

    fn w(process: usize, value: u64, begin: u64, end: u64) -> Write {
        Write {
            process,
            place: AT,
            value,
            begin,
            end,
        }
    }

    fn c(process: usize, begin: u64, end: u64) -> Commit {
        Commit {
            process,
            file: 1,
            begin,
            end,
        }
    }

    fn r(process: usize, value: u64, begin: u64, end: u64) -> Read {
        Read {
            process,
            place: AT,
            value,
            since: begin,
            begin,
            end,
        }
    }

    fn judged(writes: &[Write], commits: &[Commit], reads: &[Read]) -> Result<Seen, String> {
        let history = History {
            writes: writes.to_vec(),
            commits: commits.to_vec(),
            reads: reads.to_vec(),
        };
        let rules = Rules {
            ordered: true,
            ..Rules::default()
        };
        judge(&history, rules)
    }

    const OLDER: Result<Seen, String> = Ok(Seen { older: 1 });
    const AS_EVER: Result<Seen, String> = Ok(Seen { older: 0 });

    #[test]
    fn what_was_committed_has_to_be_seen() {
        let (write, commit) = ([w(0, 7, 10, 11)], [c(0, 12, 13)]);
        assert_eq!(judged(&write, &commit, &[r(1, 7, 14, 15)]), AS_EVER);
        assert!(judged(&write, &commit, &[r(1, 0, 14, 15)]).is_err());
        // During the commit, or without one, either value may be shown; also if the commit ended
        // before the write.
        assert_eq!(judged(&write, &commit, &[r(1, 0, 12, 15)]), OLDER);
        assert_eq!(judged(&write, &commit, &[r(1, 7, 12, 15)]), AS_EVER);
        assert_eq!(judged(&write, &[], &[r(1, 0, 14, 15)]), OLDER);
        assert_eq!(judged(&write, &[c(0, 9, 10)], &[r(1, 0, 14, 15)]), OLDER);
        // The process was killed while it committed, or while it wrote.
        let killed = [c(0, 12, NEVER)];
        assert_eq!(judged(&write, &killed, &[r(1, 0, 14, 15)]), OLDER);
        let written = [w(0, 7, 10, NEVER)];
        assert_eq!(judged(&written, &[], &[r(1, 0, 14, 15)]), AS_EVER);
        assert_eq!(judged(&written, &[], &[r(1, 7, 14, 15)]), AS_EVER);
    }

    #[test]
    fn own_writes_have_to_be_seen() {
        let writes = [w(0, 7, 10, 11), w(0, 8, 12, 13)];
        assert_eq!(judged(&writes, &[], &[r(0, 8, 14, 15)]), AS_EVER);
        assert!(judged(&writes, &[], &[r(0, 7, 14, 15)]).is_err());
        assert!(judged(&writes, &[], &[r(0, 0, 14, 15)]).is_err());
        // Other processes may see the first write.
        assert_eq!(judged(&writes, &[], &[r(1, 7, 14, 15)]), OLDER);
        // A write of another process may be read instead, but not if it was committed before the
        // reader's own write began.
        let writes = [w(0, 7, 10, 11), w(1, 8, 9, 10)];
        assert_eq!(judged(&writes, &[], &[r(0, 8, 14, 15)]), AS_EVER);
        let writes = [w(1, 8, 5, 6), w(0, 7, 10, 11)];
        assert_eq!(judged(&writes, &[], &[r(0, 8, 14, 15)]), AS_EVER);
        assert!(judged(&writes, &[c(1, 7, 8)], &[r(0, 8, 14, 15)]).is_err());
    }

    #[test]
    fn nothing_is_invented_and_nothing_comes_back() {
        let writes = [w(0, 7, 10, 11), w(1, 8, 20, 21)];
        assert!(judged(&writes, &[], &[r(2, 9, 30, 31)]).is_err());
        assert!(judged(&writes, &[], &[r(2, 8, 12, 13)]).is_err(), "not yet");
        let elsewhere = Read {
            place: (1, 1),
            ..r(2, 7, 30, 31)
        };
        assert!(judged(&writes, &[], &[elsewhere]).is_err());
        let commits = [c(0, 12, 13), c(1, 22, 23)];
        assert!(judged(&writes, &commits, &[r(2, 7, 30, 31)]).is_err());
        assert_eq!(judged(&writes, &commits, &[r(2, 8, 30, 31)]), AS_EVER);
    }

    #[test]
    fn writes_of_a_process_are_seen_in_their_order() {
        let later = Write {
            place: (1, 1),
            ..w(0, 8, 12, 13)
        };
        let saw = Read {
            place: (1, 1),
            ..r(1, 8, 20, 21)
        };
        let writes = [w(0, 7, 10, 11), later];
        assert_eq!(judged(&writes, &[], &[saw, r(1, 7, 22, 23)]), AS_EVER);
        assert!(judged(&writes, &[], &[saw, r(1, 0, 22, 23)]).is_err());
        assert_eq!(judged(&writes, &[], &[saw, r(2, 0, 22, 23)]), OLDER);
        assert_eq!(judged(&writes, &[], &[r(1, 0, 18, 19), saw]), OLDER);
        // Some bytes of a write may appear before others.
        let same = [w(0, 7, 10, 13), Write { begin: 10, ..later }];
        assert_eq!(judged(&same, &[], &[saw, r(1, 0, 22, 23)]), OLDER);
    }

    #[test]
    fn a_session_goes_by_when_it_was_opened() {
        let (writes, commits) = ([w(0, 7, 10, 11)], [c(0, 12, 13)]);
        let opened = |since: u64| Read {
            since,
            ..r(1, 0, 20, 21)
        };
        assert_eq!(judged(&writes, &commits, &[opened(13)]), OLDER);
        assert!(judged(&writes, &commits, &[opened(14)]).is_err());
        // With a bound of staleness, a write counts as committed when that time has passed.
        let history = History {
            writes: writes.to_vec(),
            reads: vec![opened(14)],
            ..History::default()
        };
        let at_once = Rules {
            at_once: true,
            ..Rules::default()
        };
        assert!(judge(&history, at_once).is_err());
        assert_eq!(judge(&history, Rules::default()), OLDER);
    }
}
