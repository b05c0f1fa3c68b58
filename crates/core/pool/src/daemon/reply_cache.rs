//! The reply cache (duplicate request cache): the requests that this daemon received, and its
//! replies. A request that is sent again, because a connection was cut or a daemon killed, is
//! carried out once.
//!
//! If a request arrives again while it is carried out, the reply is sent to the later sender. A
//! reply is kept until its requester has acknowledged it ([`Settled`]). A reply with bytes is kept
//! only if carrying the request out again would do harm, and if there is room. A request that
//! changes something also has a record in the node's directory ([`Replies`]), from before it is
//! carried out. The record outlives the daemon, so the next daemon answers from it.
//!
//! If there is no room for another request, the request is neither carried out nor answered
//! ([`Verdict::Full`]): the requester sends it again, until the requester's timeout.

use forebay_client::requests::{Known, Left, Replies, ahead, clock};
use forebay_runtime::threads::lock;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Maximum number of requests of one requester in the cache. A requester has at most 256 in
/// progress, and reports at least every 64 requests which ones are settled.
const MAX_REPLIES_PER_REQUESTER: usize = 4096;
/// Minimum time for which a record is kept after its requester's deadline.
const SLACK: Duration = Duration::from_secs(60);

/// A reply.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// 0 or an errno.
    pub status: u32,
    /// The head, encoded together with small bytes.
    pub head: Vec<u8>,
    /// The bytes that are sent separately.
    pub body: Option<Arc<Vec<u8>>>,
}

impl Kept {
    fn size(&self) -> usize {
        self.body.as_ref().map_or(0, |b| b.len())
    }

    /// Number of bytes that count against the limit. Small replies are limited by their number
    /// alone.
    fn takes(&self) -> usize {
        self.size() + self.head.len() / 256 * 256
    }
}

/// The requests for which their requester no longer waits: all with a number below `lowest`, and
/// all below `upto` that aren't in `open`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    pub lowest: u64,
    pub upto: u64,
    /// Numbers in ascending order.
    pub open: Vec<u64>,
}

impl Settled {
    fn has(&self, number: u64) -> bool {
        let listed = number < self.upto && self.open.binary_search(&number).is_err();
        number < self.lowest || listed
    }
}

/// How a request may be repeated when its outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nature {
    /// Whether carrying the request out twice does no harm.
    pub repeatable: bool,
    /// Whether the request changes something, so that a file that outlives the daemon records that
    /// the request was carried out.
    pub recorded: bool,
}

/// How to treat a request that has arrived.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict<R> {
    /// The request is new: carry it out. The cache keeps `R` until [`ReplyCache::finish`].
    New,
    /// The request is being carried out already; its reply will be sent to the new sender.
    Joined,
    /// The request was carried out, and this is the reply. The last field is true if an earlier
    /// daemon recorded the reply.
    Again(R, Arc<Kept>, bool),
    /// The request was carried out, or may have been, and the reply isn't known.
    Forgotten(R),
    /// There is no room for the reply now: the request wasn't carried out.
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
        /// Whether an earlier daemon carried out the request.
        before: bool,
    },
    /// The request was carried out, but there was no room for the reply.
    Lost(Option<u32>),
    /// An earlier daemon had begun the request; the outcome isn't known.
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

struct Requester<R> {
    lowest: u64,
    seen: BTreeMap<u64, Seen<R>>,
}

impl<R> Default for Requester<R> {
    fn default() -> Requester<R> {
        Requester {
            lowest: 0,
            seen: BTreeMap::new(),
        }
    }
}

struct State<R> {
    requesters: HashMap<u64, Requester<R>>,
    bytes: usize,
    /// Maximum number of bytes of all kept replies.
    room: usize,
}

impl<R> State<R> {
    /// Counts the bytes of all replies again, for checks.
    fn counted(&self) -> usize {
        let seen = self.requesters.values().flat_map(|r| r.seen.values());
        let takes = |seen: &Seen<R>| match seen {
            Seen::Done { kept, .. } => kept.takes(),
            _ => 0,
        };
        seen.map(takes).sum()
    }

    /// Frees the reply and the record of a request that was carried out.
    fn drop_seen(&mut self, seen: &Seen<R>, records: &Replies) {
        if let Seen::Done { kept, .. } = seen {
            assert!(
                self.bytes >= kept.takes(),
                "a reply that is dropped was counted"
            );
            self.bytes -= kept.takes();
        }
        if let Some(record) = seen.record() {
            records.free(record);
        }
    }

    /// Forgets recorded requests so old that their requester can't send them again, even if it
    /// hasn't acknowledged their replies ("settled").
    fn drop_old(&mut self, records: &Replies) {
        let now = clock();
        let mut old = Vec::new();
        for requester in self.requesters.values_mut() {
            let numbers: Vec<u64> = requester
                .seen
                .iter()
                .filter(|(_, seen)| !matches!(seen, Seen::Open { .. }))
                .filter(|(_, seen)| seen.record().is_some_and(|r| !records.is_due(r, now)))
                .map(|(number, _)| *number)
                .collect();
            old.extend(numbers.iter().filter_map(|n| requester.seen.remove(n)));
        }
        old.iter().for_each(|seen| self.drop_seen(seen, records));
    }
}

/// The requests of all requesters. `R` is where a reply is sent.
pub struct ReplyCache<R> {
    state: Mutex<State<R>>,
    records: Replies,
}

impl<R> ReplyCache<R> {
    /// A cache that keeps up to `room` bytes of replies. The cache starts with the requests that
    /// earlier daemons have `left` in the records.
    pub fn new(room: usize, records: Replies, left: Vec<Left>) -> ReplyCache<R> {
        let mut state = State {
            requesters: HashMap::new(),
            bytes: 0,
            room,
        };
        for Left {
            requester,
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
            let requester: &mut Requester<R> = state.requesters.entry(requester).or_default();
            requester.seen.insert(number, seen);
        }
        ReplyCache {
            state: Mutex::new(state),
            records,
        }
    }

    /// Registers a request of `requester`. The requester reports that the requests in `settled` are
    /// settled.
    pub fn begin(
        &self,
        requester: u64,
        number: u64,
        settled: &Settled,
        deadline: Instant,
        nature: Nature,
        reply: R,
    ) -> Verdict<R> {
        assert!(number != 0, "a request has a number");
        let mut state = lock(&self.state);
        let state = &mut *state;
        debug_assert_eq!(
            state.bytes,
            state.counted(),
            "replies take what was counted"
        );
        let entry = state.requesters.entry(requester).or_default();
        let mut done = Vec::new();
        if settled.lowest > entry.lowest || settled.upto > 0 {
            debug_assert!(
                settled.open.is_sorted(),
                "open requests are listed in order"
            );
            entry.lowest = entry.lowest.max(settled.lowest);
            // A settled request that is still being carried out is forgotten in
            // [`ReplyCache::finish`].
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
        let entry = state.requesters.entry(requester).or_default();
        if forebay_placement::planted("twice")
            && matches!(entry.seen.get(&number), Some(Seen::Done { .. }))
            && let Some(seen) = entry.seen.remove(&number)
        {
            state.drop_seen(&seen, &self.records);
        }
        let entry = state.requesters.entry(requester).or_default();
        let full = entry.seen.len() >= MAX_REPLIES_PER_REQUESTER;
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
            record = self.records.begin(requester, number, until);
            if record.is_none() {
                state.drop_old(&self.records);
                record = self.records.begin(requester, number, until);
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
        let entry = state.requesters.entry(requester).or_default();
        let other = entry.seen.insert(number, open);
        assert!(other.is_none(), "a request is begun once: {number}");
        Verdict::New
    }

    /// Whether the requester still waits for the reply.
    pub fn is_wanted(&self, requester: u64, number: u64) -> bool {
        let state = lock(&self.state);
        let seen = state
            .requesters
            .get(&requester)
            .and_then(|a| a.seen.get(&number));
        matches!(seen, Some(Seen::Open { deadline, .. }) if *deadline > Instant::now())
    }

    /// Extends the deadline of an unanswered request. Returns whether it is still unanswered.
    pub fn renew(&self, requester: u64, number: u64, until: Instant) -> bool {
        let mut state = lock(&self.state);
        let requester = state.requesters.get_mut(&requester);
        match requester.and_then(|a| a.seen.get_mut(&number)) {
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

    /// Registers the reply, and returns where to send it. `answer` None: the request wasn't carried
    /// out. `again`: the request may be carried out once more, so its reply needn't be kept.
    pub fn finish(
        &self,
        requester: u64,
        number: u64,
        answer: Option<&Arc<Kept>>,
        again: bool,
    ) -> Option<R> {
        let mut state = lock(&self.state);
        let state = &mut *state;
        let entry = state.requesters.get_mut(&requester)?;
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

/// The time until which a request with this `deadline` may be sent again, on the records' clock.
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

    /// A directory with records, removed at the end.
    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Dir {
            let dir =
                std::env::temp_dir().join(format!("fb-reply-cache-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            Dir(dir)
        }

        fn cache<R>(&self) -> ReplyCache<R> {
            let (records, left) = Replies::open(&self.0).unwrap();
            ReplyCache::new(64 << 20, records, left)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_request_is_carried_out_once() {
        let dir = Dir::new("once");
        let cache = dir.cache();
        let soon = Instant::now() + Duration::from_secs(60);
        let begin = |n, lowest, reply| cache.begin(1, n, &below(lowest), soon, ONCE, reply);
        assert_eq!(begin(5, 5, 'a'), Verdict::New);
        assert_eq!(begin(5, 5, 'b'), Verdict::Joined);
        assert_eq!(
            cache.begin(2, 5, &below(5), soon, ONCE, 'x'),
            Verdict::New,
            "another requester"
        );
        assert!(cache.is_wanted(1, 5));
        assert_eq!(cache.finish(1, 5, Some(&kept(3, 0)), false), Some('b'));
        assert_eq!(cache.finish(1, 5, Some(&kept(3, 0)), false), None);
        assert_eq!(begin(5, 5, 'c'), Verdict::Again('c', kept(3, 0), false));
        // The requester has the reply.
        assert_eq!(begin(6, 6, 'd'), Verdict::New);
        assert_eq!(begin(5, 6, 'e'), Verdict::Forgotten('e'));
        // The request wasn't carried out: it may be sent again.
        assert_eq!(cache.finish(1, 6, None, false), Some('d'));
        assert_eq!(begin(6, 6, 'f'), Verdict::New);
        // Settled while it is carried out.
        assert_eq!(begin(9, 8, 'g'), Verdict::New);
        assert_eq!(cache.finish(1, 6, Some(&kept(0, 0)), false), Some('f'));
        assert_eq!(begin(6, 8, 'h'), Verdict::Forgotten('h'));
        // A request for which no process waits.
        let now = Instant::now();
        assert_eq!(cache.begin(1, 10, &below(8), now, ONCE, 'i'), Verdict::New);
        assert!(!cache.is_wanted(1, 10));
        assert!(cache.renew(1, 10, soon) && cache.is_wanted(1, 10));
        assert!(!cache.renew(1, 6, soon) && !cache.renew(3, 10, soon));
        // Records in use: one of the other requester, and those of requests 9 and 10.
        assert_eq!(cache.records.in_use(), 3);
    }

    #[test]
    fn kept_replies_are_bounded() {
        const ROOM: usize = 64 << 20;
        let dir = Dir::new("bounded");
        let cache = dir.cache();
        let soon = Instant::now() + Duration::from_secs(60);
        let begin = |n, lowest, nature| cache.begin(1, n, &below(lowest), soon, nature, ());
        // Bytes are kept only if a repetition would do harm.
        begin(1, 1, HARMLESS);
        cache.finish(1, 1, Some(&kept(0, 100)), true);
        assert_eq!(begin(1, 1, HARMLESS), Verdict::New);
        for n in 2..100 {
            assert_eq!(begin(n, 1, ONCE), Verdict::New);
            cache.finish(1, n, Some(&kept(0, 1 << 20)), false);
        }
        assert_eq!(lock(&cache.state).bytes, ROOM);
        assert_eq!(begin(99, 1, ONCE), Verdict::Forgotten(()));
        begin(100, 100, ONCE);
        assert_eq!(lock(&cache.state).bytes, 0);
        for n in 101..2 * MAX_REPLIES_PER_REQUESTER as u64 {
            begin(n, 100, HARMLESS);
        }
        assert!(lock(&cache.state).requesters[&1].seen.len() <= MAX_REPLIES_PER_REQUESTER);
        // A request without room isn't carried out, and doesn't fail.
        assert_eq!(
            begin(3 * MAX_REPLIES_PER_REQUESTER as u64, 100, HARMLESS),
            Verdict::Full(())
        );
    }

    /// One request stays open while thousands of others are answered: all are carried out.
    #[test]
    fn an_open_request_delays_no_others() {
        let dir = Dir::new("one-open");
        let cache = dir.cache();
        let soon = Instant::now() + Duration::from_secs(60);
        assert_eq!(cache.begin(1, 1, &below(1), soon, ONCE, 1), Verdict::New);
        for n in 2..4 * MAX_REPLIES_PER_REQUESTER as u64 {
            let settled = Settled {
                lowest: 1,
                upto: if n % 64 == 0 { n } else { 0 },
                open: vec![1],
            };
            let verdict = cache.begin(1, n, &settled, soon, ONCE, n);
            assert_eq!(verdict, Verdict::New, "{n}");
            cache.finish(1, n, Some(&kept(0, 0)), false);
        }
        assert!(lock(&cache.state).requesters[&1].seen.len() <= 65);
        assert_eq!(cache.finish(1, 1, Some(&kept(0, 0)), false), Some(1));
        assert_eq!(
            cache.begin(1, 1, &below(1), soon, ONCE, 9),
            Verdict::Again(9, kept(0, 0), false)
        );
    }

    #[test]
    fn a_later_daemon_knows_what_was_carried_out() {
        let dir = Dir::new("later");
        let cache = dir.cache();
        let id = cache.records.id();
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
            assert_eq!(cache.begin(1, n, &below(1), soon, nature, 0), Verdict::New);
        }
        for n in [1, 4, 6] {
            cache.finish(1, n, Some(&kept(n as u32, 0)), true);
        }
        cache.finish(1, 5, None, false);
        drop(cache);
        let cache = dir.cache();
        assert_eq!(cache.records.id(), id);
        let begin = |n, nature| cache.begin(1, n, &below(1), soon, nature, 0);
        assert_eq!(begin(1, ONCE), Verdict::Again(0, kept(1, 0), true));
        assert_eq!(begin(2, ONCE), Verdict::Forgotten(0), "nobody knows");
        assert_eq!(begin(3, STEP), Verdict::New, "may be done twice");
        assert_eq!(begin(4, HARMLESS), Verdict::New);
        assert_eq!(begin(5, ONCE), Verdict::New, "it wasn't carried out");
        assert_eq!(begin(6, STEP), Verdict::Again(0, kept(6, 0), true));
        assert_eq!(begin(7, ONCE), Verdict::New);
        cache.begin(1, 100, &below(100), soon, HARMLESS, 0);
        // The requests 3, 5 and 7 are still being carried out.
        assert_eq!(cache.records.in_use(), 3);
    }

    #[test]
    fn expired_records_are_reused() {
        let dir = Dir::new("old");
        let cache = dir.cache();
        let soon = Instant::now() + Duration::from_secs(600);
        let mut full = 0;
        for requester in 0..20 {
            for n in 1..1000 {
                match cache.begin(requester, n, &below(1), soon, ONCE, ()) {
                    Verdict::Full(()) => full += 1,
                    _ => drop(cache.finish(requester, n, Some(&kept(0, 0)), false)),
                }
            }
        }
        assert!(full > 0, "they may all still come again");
        let state = lock(&cache.state);
        for seen in state.requesters[&3].seen.values() {
            cache.records.expire(seen.record().unwrap());
        }
        drop(state);
        assert_eq!(cache.begin(50, 1, &below(1), soon, ONCE, ()), Verdict::New);
    }
}
