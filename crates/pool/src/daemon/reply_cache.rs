//! The reply cache (duplicate request cache): which requests this daemon was asked and what it
//! answered. A request that comes again, because a connection was cut or a daemon killed, is
//! carried out once.
//!
//! A request that is still being carried out when it comes again gets its reply by the later way. A
//! reply is remembered until its asker has acknowledged it ([`Settled`]); one with bytes only if
//! carrying the request out again would do harm, and if there is room. A request that changes
//! something also has a record in the node's directory ([`Replies`]), from before it is carried
//! out. The record outlives the daemon, so the next one answers from it.
//!
//! Without room for another request, it is neither carried out nor answered ([`Verdict::Full`]):
//! its asker sends it again, until its timeout is over.

use forebay_client::requests::{Known, Left, Replies, ahead, clock};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Requests of one asker that are remembered. It has at most 256 in progress, and says at least
/// every 64 requests which ones are settled.
const MOST: usize = 4096;
/// A record is kept for so long after its request was given up by its asker, at least. Seconds.
const SLACK: Duration = Duration::from_secs(60);

/// An answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// 0 or an error.
    pub status: u32,
    /// Its head, encoded with the small bytes.
    pub head: Vec<u8>,
    /// Its bytes.
    pub body: Option<Arc<Vec<u8>>>,
}

impl Kept {
    fn size(&self) -> usize {
        self.body.as_ref().map_or(0, |b| b.len())
    }

    /// What it takes; of most answers so little that only the number of them counts.
    fn takes(&self) -> usize {
        self.size() + self.head.len() / 256 * 256
    }
}

/// Which requests their asker doesn't wait for any more: all with a number below `lowest`; and all
/// below `upto` that aren't in `open`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    pub lowest: u64,
    pub upto: u64,
    /// Ascending.
    pub open: Vec<u64>,
}

impl Settled {
    fn has(&self, number: u64) -> bool {
        let listed = number < self.upto && self.open.binary_search(&number).is_err();
        number < self.lowest || listed
    }
}

/// How a request may be repeated when nobody knows whether it was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nature {
    /// Carrying it out twice does no harm.
    pub repeatable: bool,
    /// It changes something: that it was carried out is noted where it outlives the daemon.
    pub recorded: bool,
}

/// What to do with a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict<R> {
    /// It is new: carry it out; the way back is kept here until [`Memory::finish`].
    New,
    /// It is being carried out already.
    Joined,
    /// It was; this is the answer. With true, an earlier daemon gave it.
    Again(R, Arc<Kept>, bool),
    /// It was carried out, or may have been, and its answer isn't known.
    Forgotten(R),
    /// There is no room for it now: it wasn't carried out.
    Full(R),
}

enum Seen<R> {
    Open {
        reply: R,
        deadline: Instant,
        record: Option<u32>,
    },
    Done {
        kept: Arc<Kept>,
        record: Option<u32>,
        /// It was answered by an earlier daemon.
        before: bool,
    },
    /// It was carried out, but there was no room for the answer.
    Lost(Option<u32>),
    /// An earlier daemon had begun it.
    Begun(u32),
}

impl<R> Seen<R> {
    fn record(&self) -> Option<u32> {
        match self {
            Seen::Open { record, .. } | Seen::Done { record, .. } | Seen::Lost(record) => *record,
            Seen::Begun(record) => Some(*record),
        }
    }
}

struct Asker<R> {
    lowest: u64,
    seen: BTreeMap<u64, Seen<R>>,
}

impl<R> Default for Asker<R> {
    fn default() -> Asker<R> {
        Asker {
            lowest: 0,
            seen: BTreeMap::new(),
        }
    }
}

struct State<R> {
    askers: HashMap<u64, Asker<R>>,
    bytes: usize,
    /// Most bytes of remembered answers, all together.
    room: usize,
}

impl<R> State<R> {
    /// Gives up what is remembered of a request that is carried out.
    fn drop_seen(&mut self, seen: &Seen<R>, records: &Replies) {
        if let Seen::Done { kept, .. } = seen {
            self.bytes -= kept.takes();
        }
        if let Some(record) = seen.record() {
            records.free(record);
        }
    }

    /// Gives up records of requests that nobody sends again, whose askers haven't said so.
    fn drop_old(&mut self, records: &Replies) {
        let now = clock();
        let mut old = Vec::new();
        for asker in self.askers.values_mut() {
            let numbers: Vec<u64> = asker
                .seen
                .iter()
                .filter(|(_, seen)| !matches!(seen, Seen::Open { .. }))
                .filter(|(_, seen)| seen.record().is_some_and(|r| !records.is_due(r, now)))
                .map(|(number, _)| *number)
                .collect();
            old.extend(numbers.iter().filter_map(|n| asker.seen.remove(n)));
        }
        old.iter().for_each(|seen| self.drop_seen(seen, records));
    }
}

/// The requests of all askers; `R` is the way back.
pub struct Memory<R> {
    state: Mutex<State<R>>,
    records: Replies,
}

impl<R> Memory<R> {
    /// Remembers answers with up to `room` bytes in all, and what earlier daemons have `left` in
    /// the records.
    pub fn new(room: usize, (records, left): (Replies, Vec<Left>)) -> Memory<R> {
        let mut state = State {
            askers: HashMap::new(),
            bytes: 0,
            room,
        };
        for Left {
            asker,
            number,
            record,
            known,
        } in left
        {
            let seen = match known {
                Known::Begun => Seen::Begun(record),
                Known::Lost => Seen::Lost(Some(record)),
                Known::Done(status, head) => {
                    let body = None;
                    let kept = Arc::new(Kept { status, head, body });
                    state.bytes += kept.takes();
                    Seen::Done {
                        kept,
                        record: Some(record),
                        before: true,
                    }
                }
            };
            let asker: &mut Asker<R> = state.askers.entry(asker).or_default();
            asker.seen.insert(number, seen);
        }
        Memory {
            state: Mutex::new(state),
            records,
        }
    }

    /// Tells the records from those of all other nodes, and of this one if it had to begin again.
    pub fn id(&self) -> u64 {
        self.records.id()
    }

    fn state(&self) -> MutexGuard<'_, State<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request has come, of `asker`, which has settled these.
    pub fn begin(
        &self,
        asker: u64,
        number: u64,
        settled: &Settled,
        deadline: Instant,
        nature: Nature,
        reply: R,
    ) -> Verdict<R> {
        let mut state = self.state();
        let state = &mut *state;
        let entry = state.askers.entry(asker).or_default();
        let mut done = Vec::new();
        if settled.lowest > entry.lowest || settled.upto > 0 {
            entry.lowest = entry.lowest.max(settled.lowest);
            // What is still open and settled nobody waits for; it goes when it is finished.
            let end = settled.lowest.max(settled.upto);
            let numbers: Vec<u64> = entry
                .seen
                .range(..end)
                .filter(|(n, s)| settled.has(**n) && !matches!(s, Seen::Open { .. }))
                .map(|(n, _)| *n)
                .collect();
            done.extend(numbers.iter().filter_map(|n| entry.seen.remove(n)));
        }
        done.iter()
            .for_each(|seen| state.drop_seen(seen, &self.records));
        let until = until(deadline);
        let entry = state.askers.entry(asker).or_default();
        if forebay_placement::planted("twice")
            && matches!(entry.seen.get(&number), Some(Seen::Done { .. }))
            && let Some(seen) = entry.seen.remove(&number)
        {
            state.drop_seen(&seen, &self.records);
        }
        let entry = state.askers.entry(asker).or_default();
        let full = entry.seen.len() >= MOST;
        match entry.seen.get_mut(&number) {
            Some(Seen::Open {
                reply: old,
                deadline: until,
                ..
            }) => {
                (*old, *until) = (reply, deadline);
                return Verdict::Joined;
            }
            Some(Seen::Done { kept, before, .. }) => {
                return Verdict::Again(reply, kept.clone(), *before);
            }
            Some(Seen::Begun(record)) if nature.repeatable => {
                let record = *record;
                self.records.begin_again(record, until);
                let record = Some(record);
                let open = Seen::Open {
                    reply,
                    deadline,
                    record,
                };
                entry.seen.insert(number, open);
                return Verdict::New;
            }
            Some(Seen::Lost(_) | Seen::Begun(_)) => return Verdict::Forgotten(reply),
            None if number < entry.lowest => return Verdict::Forgotten(reply),
            None if full => return Verdict::Full(reply),
            None => {}
        }
        let mut record = None;
        if nature.recorded {
            record = self.records.begin(asker, number, until);
            if record.is_none() {
                state.drop_old(&self.records);
                record = self.records.begin(asker, number, until);
            }
            if record.is_none() {
                return Verdict::Full(reply);
            }
        }
        let open = Seen::Open {
            reply,
            deadline,
            record,
        };
        let entry = state.askers.entry(asker).or_default();
        entry.seen.insert(number, open);
        Verdict::New
    }

    /// Whether somebody still waits for the answer.
    pub fn is_wanted(&self, asker: u64, number: u64) -> bool {
        let state = self.state();
        let seen = state.askers.get(&asker).and_then(|a| a.seen.get(&number));
        matches!(seen, Some(Seen::Open { deadline, .. }) if *deadline > Instant::now())
    }

    /// Its asker waits until then, if it isn't answered yet. Whether that is so.
    pub fn renew(&self, asker: u64, number: u64, until: Instant) -> bool {
        let mut state = self.state();
        let asker = state.askers.get_mut(&asker);
        match asker.and_then(|a| a.seen.get_mut(&number)) {
            Some(Seen::Open {
                deadline, record, ..
            }) => {
                *deadline = until.max(*deadline);
                if let Some(record) = record {
                    self.records.renew(*record, self::until(until));
                }
                true
            }
            _ => false,
        }
    }

    /// It was carried out: the way back. With `again`, it may be carried out another time; without
    /// an answer, it wasn't carried out.
    pub fn finish(
        &self,
        asker: u64,
        number: u64,
        answer: Option<&Arc<Kept>>,
        again: bool,
    ) -> Option<R> {
        let mut state = self.state();
        let state = &mut *state;
        let entry = state.askers.get_mut(&asker)?;
        if !matches!(entry.seen.get(&number)?, Seen::Open { .. }) {
            return None;
        }
        let Some(Seen::Open { reply, record, .. }) = entry.seen.remove(&number) else {
            return None;
        };
        let wanted = answer.filter(|kept| {
            number >= entry.lowest && (record.is_some() || kept.size() == 0 || !again)
        });
        let Some(kept) = wanted else {
            if let Some(record) = record {
                self.records.free(record);
            }
            return Some(reply);
        };
        if let Some(record) = record {
            let whole = kept.body.is_none().then_some((kept.status, &kept.head[..]));
            self.records.done(record, whole);
        }
        let fits = state.bytes + kept.takes() <= state.room;
        if fits {
            state.bytes += kept.takes();
            let (kept, before) = (kept.clone(), false);
            let done = Seen::Done {
                kept,
                record,
                before,
            };
            entry.seen.insert(number, done);
        } else if !again {
            entry.seen.insert(number, Seen::Lost(record));
        } else if let Some(record) = record {
            self.records.free(record);
        }
        Some(reply)
    }
}

/// The time on the records' clock until which a request may come again that is waited for until
/// `deadline`.
fn until(deadline: Instant) -> u64 {
    let left = deadline.saturating_duration_since(Instant::now()) + SLACK;
    ahead(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    const HARMLESS: Nature = Nature {
        repeatable: true,
        recorded: false,
    };
    const ONCE: Nature = Nature {
        repeatable: false,
        recorded: true,
    };
    const STEP: Nature = Nature {
        repeatable: true,
        recorded: true,
    };

    fn kept(status: u32, bytes: usize) -> Arc<Kept> {
        Arc::new(Kept {
            status,
            head: vec![],
            body: (bytes > 0).then(|| Arc::new(vec![0; bytes])),
        })
    }

    fn below(lowest: u64) -> Settled {
        Settled {
            lowest,
            ..Settled::default()
        }
    }

    /// A directory with records, removed in the end.
    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Dir {
            let dir = std::env::temp_dir().join(format!("fb-memory-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            Dir(dir)
        }

        fn memory<R>(&self) -> Memory<R> {
            Memory::new(64 << 20, Replies::open(&self.0).unwrap())
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_question_is_carried_out_once() {
        let dir = Dir::new("once");
        let memory = dir.memory();
        let soon = Instant::now() + Duration::from_secs(60);
        let begin = |n, lowest, reply| memory.begin(1, n, &below(lowest), soon, ONCE, reply);
        assert_eq!(begin(5, 5, 'a'), Verdict::New);
        assert_eq!(begin(5, 5, 'b'), Verdict::Joined);
        assert_eq!(
            memory.begin(2, 5, &below(5), soon, ONCE, 'x'),
            Verdict::New,
            "another asker"
        );
        assert!(memory.is_wanted(1, 5));
        assert_eq!(memory.finish(1, 5, Some(&kept(3, 0)), false), Some('b'));
        assert_eq!(memory.finish(1, 5, Some(&kept(3, 0)), false), None);
        assert_eq!(begin(5, 5, 'c'), Verdict::Again('c', kept(3, 0), false));
        // The asker has it.
        assert_eq!(begin(6, 6, 'd'), Verdict::New);
        assert_eq!(begin(5, 6, 'e'), Verdict::Forgotten('e'));
        // Not carried out: it may come again.
        assert_eq!(memory.finish(1, 6, None, false), Some('d'));
        assert_eq!(begin(6, 6, 'f'), Verdict::New);
        // Settled while it was carried out.
        assert_eq!(begin(9, 8, 'g'), Verdict::New);
        assert_eq!(memory.finish(1, 6, Some(&kept(0, 0)), false), Some('f'));
        assert_eq!(begin(6, 8, 'h'), Verdict::Forgotten('h'));
        // One that nobody waits for.
        let now = Instant::now();
        assert_eq!(memory.begin(1, 10, &below(8), now, ONCE, 'i'), Verdict::New);
        assert!(!memory.is_wanted(1, 10));
        assert!(memory.renew(1, 10, soon) && memory.is_wanted(1, 10));
        assert!(!memory.renew(1, 6, soon) && !memory.renew(3, 10, soon));
        // In use: 5 of the other asker, 9 and 10.
        assert_eq!(memory.records.in_use(), 3);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        const ROOM: usize = 64 << 20;
        let dir = Dir::new("bounded");
        let memory = dir.memory();
        let soon = Instant::now() + Duration::from_secs(60);
        let begin = |n, lowest, nature| memory.begin(1, n, &below(lowest), soon, nature, ());
        // With bytes only if it matters.
        begin(1, 1, HARMLESS);
        memory.finish(1, 1, Some(&kept(0, 100)), true);
        assert_eq!(begin(1, 1, HARMLESS), Verdict::New);
        for n in 2..100 {
            assert_eq!(begin(n, 1, ONCE), Verdict::New);
            memory.finish(1, n, Some(&kept(0, 1 << 20)), false);
        }
        assert_eq!(memory.state().bytes, ROOM);
        assert_eq!(begin(99, 1, ONCE), Verdict::Forgotten(()));
        begin(100, 100, ONCE);
        assert_eq!(memory.state().bytes, 0);
        for n in 101..2 * MOST as u64 {
            begin(n, 100, HARMLESS);
        }
        assert!(memory.state().askers[&1].seen.len() <= MOST);
        // What has no room isn't carried out, and nobody is told that it failed.
        assert_eq!(begin(3 * MOST as u64, 100, HARMLESS), Verdict::Full(()));
    }

    /// One request stays open while thousands of others are answered: all are carried out.
    #[test]
    fn an_open_question_holds_up_nobody() {
        let dir = Dir::new("one-open");
        let memory = dir.memory();
        let soon = Instant::now() + Duration::from_secs(60);
        assert_eq!(memory.begin(1, 1, &below(1), soon, ONCE, 1), Verdict::New);
        for n in 2..4 * MOST as u64 {
            let settled = Settled {
                lowest: 1,
                upto: if n % 64 == 0 { n } else { 0 },
                open: vec![1],
            };
            let verdict = memory.begin(1, n, &settled, soon, ONCE, n);
            assert_eq!(verdict, Verdict::New, "{n}");
            memory.finish(1, n, Some(&kept(0, 0)), false);
        }
        assert!(memory.state().askers[&1].seen.len() <= 65);
        assert_eq!(memory.finish(1, 1, Some(&kept(0, 0)), false), Some(1));
        assert_eq!(
            memory.begin(1, 1, &below(1), soon, ONCE, 9),
            Verdict::Again(9, kept(0, 0), false)
        );
    }

    #[test]
    fn a_later_daemon_knows_what_was_carried_out() {
        let dir = Dir::new("later");
        let memory = dir.memory();
        let id = memory.id();
        let soon = Instant::now() + Duration::from_secs(60);
        let natures = [
            (1, ONCE),
            (2, ONCE),
            (3, STEP),
            (4, HARMLESS),
            (5, ONCE),
            (6, STEP),
        ];
        for (n, nature) in natures {
            assert_eq!(memory.begin(1, n, &below(1), soon, nature, 0), Verdict::New);
        }
        for n in [1, 4, 6] {
            memory.finish(1, n, Some(&kept(n as u32, 0)), true);
        }
        memory.finish(1, 5, None, false);
        drop(memory);
        let memory = dir.memory();
        assert_eq!(memory.id(), id);
        let begin = |n, nature| memory.begin(1, n, &below(1), soon, nature, 0);
        assert_eq!(begin(1, ONCE), Verdict::Again(0, kept(1, 0), true));
        assert_eq!(begin(2, ONCE), Verdict::Forgotten(0), "nobody knows");
        assert_eq!(begin(3, STEP), Verdict::New, "may be done twice");
        assert_eq!(begin(4, HARMLESS), Verdict::New);
        assert_eq!(begin(5, ONCE), Verdict::New, "it wasn't carried out");
        assert_eq!(begin(6, STEP), Verdict::Again(0, kept(6, 0), true));
        assert_eq!(begin(7, ONCE), Verdict::New);
        memory.begin(1, 100, &below(100), soon, HARMLESS, 0);
        // 3, 5 and 7 are still carried out.
        assert_eq!(memory.records.in_use(), 3);
    }

    #[test]
    fn records_of_those_who_never_come_back_are_used_again() {
        let dir = Dir::new("old");
        let memory = dir.memory();
        let soon = Instant::now() + Duration::from_secs(600);
        let mut full = 0;
        for asker in 0..20 {
            for n in 1..1000 {
                match memory.begin(asker, n, &below(1), soon, ONCE, ()) {
                    Verdict::Full(()) => full += 1,
                    _ => drop(memory.finish(asker, n, Some(&kept(0, 0)), false)),
                }
            }
        }
        assert!(full > 0, "they may all still come again");
        let state = memory.state();
        for seen in state.askers[&3].seen.values() {
            memory.records.expire(seen.record().unwrap());
        }
        drop(state);
        assert_eq!(memory.begin(50, 1, &below(1), soon, ONCE, ()), Verdict::New);
    }
}
