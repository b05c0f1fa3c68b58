//! What a daemon remembers of the questions it was asked, so that one that comes again, because a
//! connection was cut, is carried out once.
//!
//! A question that is still being carried out when it comes again gets its answer by the later way. An
//! answer is remembered until its asker says that it has it; one with bytes only if carrying the question out
//! again would do harm, and if there is room.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Questions of one asker that are remembered: many more than one has under way.
const MOST: usize = 4096;

/// An answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// 0 or an error.
    pub status: u32,
    /// Its head, encoded with the small bytes.
    pub head: Vec<u8>,
    /// What goes with it.
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

/// What is to be done about a question.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict<R> {
    /// It is new: carry it out; the way back is kept here until [`Memory::finish`].
    New,
    /// It is being carried out already.
    Joined,
    /// It was; this is the answer.
    Again(R, Arc<Kept>),
    /// Its answer is forgotten: the asker had it, or has asked for too much.
    Forgotten(R),
}

enum Seen<R> {
    Open {
        reply: R,
        deadline: Instant,
    },
    Done(Arc<Kept>),
    /// It was carried out, but there was no room for the answer.
    Lost,
}

struct Asker<R> {
    lowest: u64,
    seen: BTreeMap<u64, Seen<R>>,
}

struct State<R> {
    askers: HashMap<u64, Asker<R>>,
    bytes: usize,
    /// Most bytes of remembered answers, all together.
    room: usize,
}

/// The questions of all askers; `R` is the way back.
pub struct Memory<R>(Mutex<State<R>>);

impl<R> Memory<R> {
    /// Remembers answers with up to `room` bytes in all.
    pub fn new(room: usize) -> Memory<R> {
        Memory(Mutex::new(State {
            askers: HashMap::new(),
            bytes: 0,
            room,
        }))
    }

    fn state(&self) -> MutexGuard<'_, State<R>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A question has come, of `asker`, which has settled all below `lowest`.
    pub fn begin(
        &self,
        asker: u64,
        number: u64,
        lowest: u64,
        deadline: Instant,
        reply: R,
    ) -> Verdict<R> {
        let mut state = self.state();
        let state = &mut *state;
        let entry = state.askers.entry(asker).or_insert_with(|| Asker {
            lowest: 0,
            seen: BTreeMap::new(),
        });
        if lowest > entry.lowest {
            entry.lowest = lowest;
            // What is still open and settled nobody waits for; it goes when it is finished.
            let settled = entry.seen.range(..lowest);
            let done: Vec<u64> = settled
                .filter(|(_, s)| !matches!(s, Seen::Open { .. }))
                .map(|(n, _)| *n)
                .collect();
            for number in done {
                if let Some(Seen::Done(kept)) = entry.seen.remove(&number) {
                    state.bytes -= kept.takes();
                }
            }
        }
        let full = entry.seen.len() >= MOST;
        match entry.seen.get_mut(&number) {
            Some(open @ Seen::Open { .. }) => {
                *open = Seen::Open { reply, deadline };
                Verdict::Joined
            }
            Some(Seen::Done(kept)) => Verdict::Again(reply, kept.clone()),
            Some(Seen::Lost) => Verdict::Forgotten(reply),
            None if number < entry.lowest || full => Verdict::Forgotten(reply),
            None => {
                entry.seen.insert(number, Seen::Open { reply, deadline });
                Verdict::New
            }
        }
    }

    /// Whether somebody still waits for the answer.
    pub fn is_wanted(&self, asker: u64, number: u64) -> bool {
        let state = self.state();
        let seen = state.askers.get(&asker).and_then(|a| a.seen.get(&number));
        matches!(seen, Some(Seen::Open { deadline, .. }) if *deadline > Instant::now())
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
        let Some(Seen::Open { reply, .. }) = entry.seen.remove(&number) else {
            return None;
        };
        if let Some(kept) = answer
            && number >= entry.lowest
            && (kept.size() == 0 || !again)
        {
            let fits = state.bytes + kept.takes() <= state.room;
            state.bytes += if fits { kept.takes() } else { 0 };
            if fits {
                entry.seen.insert(number, Seen::Done(kept.clone()));
            } else if !again {
                entry.seen.insert(number, Seen::Lost);
            }
        }
        Some(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn kept(status: u32, bytes: usize) -> Arc<Kept> {
        Arc::new(Kept {
            status,
            head: vec![],
            body: (bytes > 0).then(|| Arc::new(vec![0; bytes])),
        })
    }

    #[test]
    fn a_question_is_carried_out_once() {
        let memory = Memory::new(64 << 20);
        let soon = Instant::now() + Duration::from_secs(60);
        let begin = |n, lowest, reply| memory.begin(1, n, lowest, soon, reply);
        assert_eq!(begin(5, 5, 'a'), Verdict::New);
        assert_eq!(begin(5, 5, 'b'), Verdict::Joined);
        assert_eq!(
            memory.begin(2, 5, 5, soon, 'x'),
            Verdict::New,
            "another asker"
        );
        assert!(memory.is_wanted(1, 5));
        assert_eq!(memory.finish(1, 5, Some(&kept(3, 0)), false), Some('b'));
        assert_eq!(memory.finish(1, 5, Some(&kept(3, 0)), false), None);
        assert_eq!(begin(5, 5, 'c'), Verdict::Again('c', kept(3, 0)));
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
        assert_eq!(memory.begin(1, 10, 8, Instant::now(), 'i'), Verdict::New);
        assert!(!memory.is_wanted(1, 10));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        const ROOM: usize = 64 << 20;
        let memory = Memory::new(ROOM);
        let soon = Instant::now() + Duration::from_secs(60);
        // With bytes only if it matters.
        memory.begin(1, 1, 1, soon, ());
        memory.finish(1, 1, Some(&kept(0, 100)), true);
        assert_eq!(memory.begin(1, 1, 1, soon, ()), Verdict::New);
        for n in 2..100 {
            assert_eq!(memory.begin(1, n, 1, soon, ()), Verdict::New);
            memory.finish(1, n, Some(&kept(0, 1 << 20)), false);
        }
        assert_eq!(memory.state().bytes, ROOM);
        let last = memory.begin(1, 99, 1, soon, ());
        assert_eq!(last, Verdict::Forgotten(()));
        memory.begin(1, 100, 100, soon, ());
        assert_eq!(memory.state().bytes, 0);
        for n in 101..2 * MOST as u64 {
            memory.begin(1, n, 100, soon, ());
        }
        assert!(memory.state().askers[&1].seen.len() <= MOST);
    }
}
