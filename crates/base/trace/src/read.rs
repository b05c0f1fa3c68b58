//! Reads the rings of living and dead processes. A ring may change during the read, and may be
//! damaged: whatever its bytes are, the result is events or an error.

use crate::points::{Kind, MAX_FIELDS, POINTS};
use crate::ring::{EVENT, IS_TEXT, MAGIC, TEXT, WITH_TEXT};
use crate::shared::RING_EVENTS_RANGE;
use std::sync::atomic::{AtomicU64, Ordering::*, fence};

/// An event that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The event's number in the ring.
    pub number: u64,
    /// Ticks.
    pub time: u64,
    /// The index of the event's point in [`POINTS`].
    pub point: u16,
    /// Process id.
    pub process: u32,
    /// Thread id.
    pub thread: u32,
    /// Id of the request on which the thread worked ([`crate::request`]).
    pub request: u64,
    /// The fields of the point; unused ones are 0.
    pub fields: [u64; MAX_FIELDS],
    /// The beginning of a text, if the point has one.
    pub text: Option<Vec<u8>>,
}

/// Content of a ring.
#[derive(Debug, Default)]
pub struct Ring {
    /// Process id.
    pub process: u32,
    /// The program's name.
    pub program: String,
    /// Events in the order of their numbers.
    pub records: Vec<Record>,
    /// The number that the next event in the ring will have.
    pub next: u64,
    /// Number of events from number `from` of [`read`] on that were overwritten before they were
    /// read, or whose recording hasn't ended.
    pub lost: u64,
}

/// The words of a ring.
pub struct Words<'a>(&'a [AtomicU64]);

impl<'a> Words<'a> {
    /// Makes a value for the words of a mapping or a copy of a ring.
    pub fn new(words: &'a [AtomicU64]) -> Words<'a> {
        Words(words)
    }

    fn get(&self, i: usize) -> u64 {
        self.0[i].load(Relaxed)
    }
}

const WORDS: usize = EVENT / 8;

/// Which events [`read`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All complete events. An event whose recording hasn't ended counts as lost.
    All,
    /// All events before the first one whose recording hasn't ended; the next call continues there.
    Settled,
}

/// Reads the events of a ring from number `from` on.
///
/// # Errors
/// A sentence that describes the damage of the ring.
pub fn read(words: &Words<'_>, from: u64, extent: Extent) -> Result<Ring, String> {
    if words.0.len() < WORDS {
        return Err("it is too short for a ring".into());
    }
    if words.0[0].load(Acquire) != MAGIC {
        return Err("it isn't a ring of events, or not of this version".into());
    }
    if words.get(1) != crate::points::table() {
        return Err("it was written by another build of Forebay, whose tracepoints differ".into());
    }
    let (events, process) = (words.get(2) as u32, (words.get(2) >> 32) as u32);
    let (least, most) = RING_EVENTS_RANGE;
    let fits = words.0.len() >= (events as usize + 1) * WORDS;
    if !events.is_power_of_two() || !(least..=most).contains(&events) || !fits {
        return Err(format!("its header says {events} events, which can't be"));
    }
    let name = [words.get(6).to_le_bytes(), words.get(7).to_le_bytes()];
    let name = name.as_flattened();
    let name = &name[..name.iter().position(|&b| b == 0).unwrap_or(name.len())];
    let next = words.0[3].load(Acquire);
    let mut ring = Ring {
        process,
        program: String::from_utf8_lossy(name).into_owned(),
        records: Vec::new(),
        next,
        lost: 0,
    };
    if from > next || words.get(5) > next {
        return Err(format!("it has {next} events, fewer than were read before"));
    }
    let from = from.max(words.get(5));
    // The latest events may not have been written yet: a writer may wait for this reader before it
    // overwrites an older event. Each event in the ring contains its number, so an older event is
    // recognised.
    let mut number = from.max(next.saturating_sub(2 * u64::from(events)));
    ring.lost = number - from;
    while number < next {
        let Some(event) = words.event(number, events) else {
            if extent == Extent::Settled && !words.is_over(number, events) {
                ring.next = number;
                break;
            }
            ring.lost += 1;
            number += 1;
            continue;
        };
        let (mut record, with_text) = match record(&event, number, process) {
            Some(found) => found,
            None => {
                // The text of an event that was overwritten, or a damaged event.
                ring.lost += u64::from(event[2] & 0xffff != IS_TEXT);
                number += 1;
                continue;
            }
        };
        if with_text
            && extent == Extent::Settled
            && words.event(number + 1, events).is_none()
            && !words.is_over(number + 1, events)
        {
            ring.next = number;
            break;
        }
        number += 1;
        if with_text && number < next {
            record.text = words.event(number, events).and_then(|e| text(&e));
            ring.lost += u64::from(record.text.is_none());
            number += 1;
        }
        ring.records.push(record);
    }
    Ok(ring)
}

impl Words<'_> {
    /// Whether a later event has overwritten event `number`.
    fn is_over(&self, number: u64, events: u32) -> bool {
        let at = (1 + (number & u64::from(events - 1)) as usize) * WORDS;
        self.0
            .get(at)
            .is_none_or(|there| there.load(Acquire) > number + 1)
    }

    /// Returns the words of an event; None if the ring doesn't have the complete event.
    fn event(&self, number: u64, events: u32) -> Option<[u64; WORDS]> {
        let at = (1 + (number & u64::from(events - 1)) as usize) * WORDS;
        let place = self.0.get(at..at + WORDS)?;
        if place[0].load(Acquire) != number + 1 {
            return None;
        }
        let words = std::array::from_fn(|i| place[i].load(Relaxed));
        fence(Acquire);
        (place[0].load(Relaxed) == number + 1).then_some(words)
    }
}

fn record(event: &[u64; WORDS], number: u64, process: u32) -> Option<(Record, bool)> {
    let what = event[2];
    let point = (what & 0xffff) as u16;
    POINTS.get(point as usize)?;
    let record = Record {
        number,
        time: event[1],
        point,
        process,
        thread: (what >> 32) as u32 & 0x7fff_ffff,
        request: event[3],
        fields: [event[4], event[5], event[6], event[7]],
        text: None,
    };
    Some((record, what & WITH_TEXT != 0))
}

fn text(event: &[u64; WORDS]) -> Option<Vec<u8>> {
    let (what, len) = (event[2] & 0xffff, (event[2] >> 16) as usize & 0xffff);
    if what != IS_TEXT || len > TEXT {
        return None;
    }
    let words = [event[1], event[3], event[4], event[5], event[6], event[7]];
    let bytes = words.map(u64::to_le_bytes);
    Some(bytes.as_flattened()[..len].to_vec())
}

impl Record {
    /// The point's name.
    pub fn name(&self) -> &'static str {
        POINTS[self.point as usize].name
    }

    /// Names, kinds and values of the event's fields.
    pub fn named_fields(&self) -> impl Iterator<Item = (&'static str, Kind, u64)> + '_ {
        let about = POINTS[self.point as usize].fields;
        about
            .iter()
            .zip(self.fields)
            .map(|(&(name, kind), value)| (name, kind, value))
    }

    /// Returns the template of the event's point, filled with its values. `words` may give another
    /// text for a value.
    pub fn sentence_by(&self, words: impl Fn(Kind, u64) -> Option<String>) -> String {
        let mut sentence = POINTS[self.point as usize].template.to_owned();
        for (name, kind, value) in self.named_fields() {
            let shown = words(kind, value).unwrap_or_else(|| shown(kind, value));
            sentence = sentence.replace(&format!("{{{name}}}"), &shown);
        }
        if let Some(text) = &self.text {
            sentence = sentence.replace("{text}", &String::from_utf8_lossy(text));
        }
        sentence
    }
}

/// Formats a value for users.
pub fn shown(kind: Kind, value: u64) -> String {
    match kind {
        Kind::Number | Kind::Node => (value as i64).to_string(),
        Kind::Call => match crate::calls::name(value) {
            Some(name) => name.to_owned(),
            None => value.to_string(),
        },
        Kind::Request => value.to_string(),
        Kind::Object | Kind::Bits => format!("{value:x}"),
        Kind::Bytes => format!("{value} bytes"),
        Kind::Ticks => format!("{value} ticks"),
        Kind::Errno if value == 0 => "done".into(),
        Kind::Errno => rustix::io::Errno::from_raw_os_error(value as i32).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach;
    use crate::shared::{LEN, SHARED, Shared, format};
    use std::os::unix::fs::FileExt;
    use std::path::{Path, PathBuf};

    fn temporary(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("fb-trace-{name}-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("rings")).unwrap();
        dir
    }

    fn words(path: &Path) -> Vec<AtomicU64> {
        let bytes = std::fs::read(path).unwrap();
        bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|b| AtomicU64::new(u64::from_le_bytes(*b)))
            .collect()
    }

    #[test]
    fn events_are_recorded_and_read_and_garbage_is_an_error() {
        let dir = temporary("ring");
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(dir.join("shared"))
            .unwrap();
        file.set_len(LEN as u64).unwrap();
        // SAFETY: zeroed memory is a valid `Shared`.
        let mut fresh: Box<Shared> = unsafe { Box::new_zeroed().assume_init() };
        format(&fresh);
        *fresh.head.ring_events.get_mut() = 128;
        // SAFETY: `fresh` is a `Shared`: LEN bytes of plain memory.
        let bytes =
            unsafe { std::slice::from_raw_parts(std::ptr::from_ref(&*fresh).cast::<u8>(), LEN) };
        file.write_all_at(bytes, 0).unwrap();
        let attached = attach(&file, 0, &dir.join("rings")).unwrap();

        crate::event!(STORE_OPEN_EXIT, 2u64);
        let is_empty = || {
            std::fs::read_dir(dir.join("rings"))
                .unwrap()
                .next()
                .is_none()
        };
        assert!(is_empty(), "nothing is on");
        let on = |point: crate::Point| SHARED.on[point as usize].store(1, Relaxed);
        on(crate::Point::STORE_OPEN_EXIT);
        on(crate::Point::STORE_LOOKUP_ENTER);
        for round in 0..10u64 {
            crate::adopt_request(0);
            crate::event_of!(
                STORE_LOOKUP_ENTER,
                b"a name that is longer than forty-eight bytes, and so is cut",
                0xab_u64
            );
            crate::event!(STORE_OPEN_EXIT, if round == 9 { 2 } else { 0 });
            crate::event!(STORE_OPEN_ENTER, 1u64);
        }
        let path = std::fs::read_dir(dir.join("rings"))
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path();
        let ring = read(&Words::new(&words(&path)), 0, Extent::All).unwrap();
        assert_eq!((ring.records.len(), ring.lost, ring.next), (20, 0, 30));
        assert_eq!(ring.process, std::process::id());
        let texts: Vec<String> = ring
            .records
            .iter()
            .map(|r| r.sentence_by(|_, _| None))
            .collect();
        assert_eq!(
            texts[0],
            "entry a name that is longer than forty-eight bytes, an of directory ab"
        );
        assert_eq!(texts[1], "opened: done");
        assert!(
            texts[19].starts_with("opened: No such file"),
            "{}",
            texts[19]
        );
        assert_eq!(ring.records[0].request, ring.records[1].request);
        assert_ne!(ring.records[0].request, ring.records[2].request);
        assert!(ring.records.is_sorted_by_key(|r| r.time));

        // The ring wraps around: the newest events remain.
        for _ in 0..300 {
            crate::event!(STORE_OPEN_EXIT, 0);
        }
        let ring = read(&Words::new(&words(&path)), 30, Extent::All).unwrap();
        assert_eq!((ring.records.len(), ring.next, ring.lost), (128, 330, 172));

        // Several threads record at once: every event is complete.
        std::thread::scope(|s| {
            for thread in 0..4u64 {
                s.spawn(move || {
                    for _ in 0..2000 {
                        crate::event!(STORE_OPEN_EXIT, thread);
                    }
                });
            }
            for _ in 0..200 {
                for record in read(&Words::new(&words(&path)), 0, Extent::All)
                    .unwrap()
                    .records
                {
                    assert!(record.fields[0] < 4 || record.text.is_some(), "{record:?}");
                }
            }
        });

        let good = words(&path);
        for seed in 1..2000u64 {
            let damaged: Vec<AtomicU64> = good
                .iter()
                .map(|w| AtomicU64::new(w.load(Relaxed)))
                .collect();
            let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let at = (random >> 32) as usize % if seed % 2 == 0 { 8 } else { damaged.len() };
            damaged[at].store(random.rotate_left(17), Relaxed);
            let cut = if seed % 3 == 0 {
                random as usize % damaged.len()
            } else {
                damaged.len()
            };
            let _ = read(&Words::new(&damaged[..cut]), seed % 7, Extent::All);
        }
        assert!(read(&Words::new(&[]), 0, Extent::All).is_err());
        drop(attached);
        assert!(!crate::is_on(crate::Point::STORE_OPEN_EXIT), "detached");
        std::fs::remove_dir_all(dir).unwrap();
    }
}
