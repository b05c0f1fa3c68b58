//! The format of a file of events, of any number of nodes and processes.
//!
//! ```text
//! magic    8 bytes "FBEVENT1"
//! names    u32 length, then JSON: the names of all points of the build that recorded
//! events   LZ4 frames (the standard format), of entries:
//!            u8  1: an event. u16 point, u16 node, u32 process, u32 thread, u64 time (nanoseconds
//!                   since 1970), u64 request, u8 number of fields, u8 length of the text,
//!                   fields as u64, text
//!                2: a process. u16 node, u32 process, u8 length, name of the program
//!                3: lost events. u16 node, u32 process, u64 number of lost events
//!                4: a directory. u64 id, u16 length, its path in the pool
//! ```
//! All numbers are little-endian. A stream may end anywhere (the disk was full, the recording
//! process was killed): the complete entries are read, and [`Recording::cut`] has the reason.

use forebay_trace::points::{MAX_FIELDS, POINTS};
use forebay_trace::read::Record;
use lz4_flex::frame::{FrameDecoder, FrameEncoder};
use std::collections::BTreeMap;
use std::io::{self, BufReader, Read, Write};

const MAGIC: &[u8; 8] = b"FBEVENT1";
const EVENT: u8 = 1;
const PROCESS: u8 = 2;
const LOST: u8 = 3;
const DIRECTORY: u8 = 4;
/// Maximum size of the list of names. Bytes.
const MAX_NAMES_BYTES: usize = 1 << 20;

/// An event of one of the nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The node.
    pub node: u16,
    /// The event, with its time in nanoseconds since 1970 and the number 0.
    pub record: Record,
}

/// A writer of a stream.
pub struct Writer<W: Write> {
    out: FrameEncoder<W>,
}

impl<W: Write> Writer<W> {
    /// Begins a stream: writes its head.
    pub fn new(mut to: W) -> io::Result<Writer<W>> {
        let names: Vec<&str> = POINTS.iter().map(|p| p.name).collect();
        let names = serde_json::to_vec(&names).map_err(io::Error::other)?;
        to.write_all(MAGIC)?;
        to.write_all(&(names.len() as u32).to_le_bytes())?;
        to.write_all(&names)?;
        Ok(Writer {
            out: FrameEncoder::new(to),
        })
    }

    /// Records the name of a process's program.
    pub fn process(&mut self, node: u16, process: u32, program: &str) -> io::Result<()> {
        let name = &program.as_bytes()[..program.len().min(255)];
        let mut entry = vec![PROCESS];
        entry.extend_from_slice(&node.to_le_bytes());
        entry.extend_from_slice(&process.to_le_bytes());
        entry.push(name.len() as u8);
        entry.extend_from_slice(name);
        self.out.write_all(&entry)
    }

    /// Records that this many events of a process were lost.
    pub fn lost(&mut self, node: u16, process: u32, count: u64) -> io::Result<()> {
        let mut entry = vec![LOST];
        entry.extend_from_slice(&node.to_le_bytes());
        entry.extend_from_slice(&process.to_le_bytes());
        entry.extend_from_slice(&count.to_le_bytes());
        self.out.write_all(&entry)
    }

    /// Records the path of a directory, from which a reader derives the paths of files.
    pub fn directory(&mut self, id: u64, path: &[u8]) -> io::Result<()> {
        let path = &path[..path.len().min(u16::MAX.into())];
        let mut entry = vec![DIRECTORY];
        entry.extend_from_slice(&id.to_le_bytes());
        entry.extend_from_slice(&(path.len() as u16).to_le_bytes());
        entry.extend_from_slice(path);
        self.out.write_all(&entry)
    }

    /// Writes an event; `time` is in nanoseconds since 1970.
    pub fn event(&mut self, node: u16, record: &Record, time: u64) -> io::Result<()> {
        let fields = POINTS[record.point as usize].fields.len();
        let text = record.text.as_deref().unwrap_or(&[]);
        let text = &text[..text.len().min(255)];
        let mut entry = Vec::with_capacity(32 + 8 * fields + text.len());
        entry.push(EVENT);
        entry.extend_from_slice(&record.point.to_le_bytes());
        entry.extend_from_slice(&node.to_le_bytes());
        entry.extend_from_slice(&record.process.to_le_bytes());
        entry.extend_from_slice(&record.thread.to_le_bytes());
        entry.extend_from_slice(&time.to_le_bytes());
        entry.extend_from_slice(&record.request.to_le_bytes());
        entry.push(fields as u8);
        entry.push(text.len() as u8);
        for field in &record.fields[..fields] {
            entry.extend_from_slice(&field.to_le_bytes());
        }
        entry.extend_from_slice(text);
        self.out.write_all(&entry)
    }

    /// Writes the buffered entries, so that a reader can see them.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Ends the stream.
    pub fn finish(self) -> io::Result<W> {
        self.out.finish().map_err(io::Error::other)
    }
}

/// The content of a stream.
#[derive(Debug, Default)]
pub struct Recording {
    /// Events in the order of time.
    pub events: Vec<Event>,
    /// Names of programs by node and process id.
    pub programs: BTreeMap<(u16, u32), String>,
    /// Number of lost events, by node and process id.
    pub lost: BTreeMap<(u16, u32), u64>,
    /// Paths of directories by their ids.
    pub directories: BTreeMap<u64, String>,
    /// Number of events of tracepoints that this build doesn't have.
    pub unknown: u64,
    /// The reason why the stream ended early. None: the stream is complete.
    pub cut: Option<String>,
}

impl Recording {
    /// Reads a stream.
    ///
    /// # Errors
    /// The input isn't a stream of events. An unreadable entry and those after it are left out,
    /// which [`Recording::cut`] tells.
    pub fn read(from: impl Read) -> Result<Recording, String> {
        let mut from = BufReader::new(from);
        let mut magic = [0; 8];
        let whole = from.read_exact(&mut magic);
        if whole.is_err() || magic != *MAGIC {
            return Err("this isn't a stream of events".into());
        }
        let short = |e: io::Error| format!("its beginning can't be read: {e}");
        let mut length = [0; 4];
        from.read_exact(&mut length).map_err(short)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX_NAMES_BYTES {
            return Err("its list of tracepoints is too long".into());
        }
        let mut names = vec![0; length];
        from.read_exact(&mut names).map_err(short)?;
        let names: Vec<String> = serde_json::from_slice(&names)
            .map_err(|e| format!("its list of tracepoints can't be read: {e}"))?;
        let points: Vec<Option<u16>> = names
            .iter()
            .map(|name| forebay_trace::points::named(name).map(|i| i as u16))
            .collect();
        let mut recording = Recording::default();
        let mut frames = BufReader::new(FrameDecoder::new(from));
        loop {
            match recording.entry(&mut frames, &points) {
                Ok(true) => {}
                Ok(false) => break,
                Err(why) => {
                    recording.cut = Some(why);
                    break;
                }
            }
        }
        recording.sort();
        Ok(recording)
    }

    /// Orders the events by time.
    pub fn sort(&mut self) {
        self.events.sort_by_key(|e| e.record.time);
    }

    fn entry(&mut self, from: &mut impl Read, points: &[Option<u16>]) -> Result<bool, String> {
        let mut sort = [0];
        match from.read(&mut sort) {
            Ok(0) => return Ok(false),
            Ok(_) => {}
            Err(e) => return Err(format!("it ends in the middle: {e}")),
        }
        let mut bytes = |n: usize| {
            let mut bytes = vec![0; n];
            from.read_exact(&mut bytes)
                .map_err(|e| format!("it ends in the middle: {e}"))?;
            Ok::<_, String>(bytes)
        };
        match sort[0] {
            EVENT => {
                let head = bytes(30)?;
                let (fields, text) = (head[28] as usize, head[29] as usize);
                if fields > MAX_FIELDS {
                    return Err(format!("an event has {fields} fields"));
                }
                let words = bytes(8 * fields)?;
                let text = bytes(text)?;
                let point = points.get(u16_at(&head, 0) as usize).copied().flatten();
                let Some(point) = point.filter(|&p| POINTS[p as usize].fields.len() == fields)
                else {
                    self.unknown += 1;
                    return Ok(true);
                };
                let mut values = [0; MAX_FIELDS];
                for (value, word) in values.iter_mut().zip(words.as_chunks::<8>().0) {
                    *value = u64::from_le_bytes(*word);
                }
                self.events.push(Event {
                    node: u16_at(&head, 2),
                    record: Record {
                        number: 0,
                        point,
                        process: u32_at(&head, 4),
                        thread: u32_at(&head, 8),
                        time: u64_at(&head, 12),
                        request: u64_at(&head, 20),
                        fields: values,
                        text: (!text.is_empty()).then_some(text),
                    },
                });
            }
            PROCESS => {
                let head = bytes(7)?;
                let name = bytes(head[6] as usize)?;
                let key = (u16_at(&head, 0), u32_at(&head, 2));
                self.programs
                    .insert(key, String::from_utf8_lossy(&name).into_owned());
            }
            LOST => {
                let head = bytes(14)?;
                *self
                    .lost
                    .entry((u16_at(&head, 0), u32_at(&head, 2)))
                    .or_default() += u64_at(&head, 6);
            }
            DIRECTORY => {
                let head = bytes(10)?;
                let path = bytes(u16_at(&head, 8).into())?;
                let path = String::from_utf8_lossy(&path).into_owned();
                self.directories.insert(u64_at(&head, 0), path);
            }
            other => {
                return Err(format!(
                    "it has an entry of kind {other}, which isn't known"
                ));
            }
        }
        Ok(true)
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_trace::Point;

    fn record(i: u64) -> Record {
        Record {
            number: 0,
            time: 1_000_000 - i,
            point: Point::STORE_LOOKUP_ENTER as u16,
            process: 7,
            thread: 8,
            request: i,
            fields: [i * 3, 0, 0, 0],
            text: i.is_multiple_of(2).then(|| b"name".to_vec()),
        }
    }

    fn stream(n: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes).unwrap();
        writer.process(3, 7, "solver").unwrap();
        for i in 0..n {
            writer.event(3, &record(i), record(i).time).unwrap();
            if i % 100 == 0 {
                writer.flush().unwrap();
            }
        }
        writer.lost(3, 7, 5).unwrap();
        writer.directory(99, b"/a/b").unwrap();
        writer.finish().unwrap();
        bytes
    }

    #[test]
    fn a_stream_comes_back_and_may_end_anywhere() {
        let bytes = stream(1000);
        assert!(bytes.len() < 1000 * 40, "{} bytes", bytes.len());
        let all = Recording::read(&bytes[..]).unwrap();
        assert_eq!((all.events.len(), &all.cut, all.unknown), (1000, &None, 0));
        assert_eq!(all.programs[&(3, 7)], "solver");
        assert_eq!(all.lost[&(3, 7)], 5);
        assert_eq!(all.directories[&99], "/a/b");
        assert_eq!(
            all.events[999].record,
            record(0),
            "the first one is the latest"
        );
        let mut before = 0;
        for end in (0..bytes.len()).step_by(61) {
            let Ok(part) = Recording::read(&bytes[..end]) else {
                continue;
            };
            assert!(part.events.len() >= before && part.events.len() <= 1000);
            before = part.events.len();
        }
        assert!(before > 800);
    }

    #[test]
    fn garbage_is_an_error_or_a_cut() {
        assert!(Recording::read(&b""[..]).is_err());
        assert!(Recording::read(&b"FBEVENT1"[..]).is_err());
        assert!(Recording::read(&[0xff; 1000][..]).is_err());
        let good = stream(300);
        for seed in 0..3000usize {
            let mut bad = good.clone();
            let at = seed * 7919 % bad.len();
            bad[at] ^= 1 << (seed % 8);
            let _ = Recording::read(&bad[..]);
        }
    }
}
