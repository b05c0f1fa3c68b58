//! Sums up events to the busiest files and directories of an interval.
//!
//! Three tracepoints suffice: opening a file gives its name and directory, and the end of a read or
//! write gives the number of bytes. At most [`MAX_CACHED_NAMES`] names are kept between intervals.
//! The name of a file that was opened before the points were on is in the tables of open files
//! ([`super::names`]).

use forebay_trace::Point;
use forebay_trace::read::Record;
use std::collections::HashMap;
use std::time::Duration;

/// The tracepoints whose events are summed up.
pub const POINTS: [Point; 3] = [
    Point::POSIX_OPENED,
    Point::POSIX_READ_EXIT,
    Point::POSIX_WRITE_EXIT,
];

/// Maximum number of names kept. At the maximum, all names are forgotten.
const MAX_CACHED_NAMES: usize = 100_000;
/// Maximum number of rows of each list.
const MAX_ROWS: usize = 200;

/// Use of a file in one interval.
#[derive(Clone, Copy, Default)]
struct Use {
    operations: u64,
    read: u64,
    written: u64,
}

impl Use {
    fn add(&mut self, other: Use) {
        self.operations += other.operations;
        self.read += other.read;
        self.written += other.written;
    }
}

/// A file or directory, and the operations and bytes on it per second.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub path: String,
    pub operations: f64,
    pub read: f64,
    pub written: f64,
}

/// The busiest files and directories of an interval, by bytes, then by operations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hot {
    pub files: Vec<Row>,
    pub directories: Vec<Row>,
    /// Number of events that were overwritten before they were read.
    pub lost: u64,
    /// Number of events that were read.
    pub seen: u64,
    /// Whether another command has switched the tracepoints off.
    pub off: bool,
}

impl Unknown {
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.directories.is_empty()
    }
}

/// Sums up the events of an interval, and keeps the names of files and directories.
#[derive(Default)]
pub struct Tally {
    files: HashMap<u64, Use>,
    /// Directory id and name of each file, by its id.
    names: HashMap<u64, (u64, String)>,
    paths: HashMap<u64, String>,
    lost: u64,
    seen: u64,
}

/// Ids whose names aren't known.
#[derive(Default)]
pub struct Unknown {
    pub files: Vec<u64>,
    pub directories: Vec<u64>,
}

impl Tally {
    /// Counts events of one process, in their order.
    pub fn add(&mut self, records: &[Record], lost: u64) {
        self.lost += lost;
        for record in records {
            let [file, second, ..] = record.fields;
            let is = |point: Point| record.point == point as u16;
            let mut used = Use {
                operations: 1,
                ..Use::default()
            };
            if is(Point::POSIX_OPENED) {
                let name = record.text.as_deref().unwrap_or(b"");
                self.name(file, second, name);
            } else if is(Point::POSIX_READ_EXIT) {
                used.read = second;
            } else if is(Point::POSIX_WRITE_EXIT) {
                used.written = second;
            } else {
                continue;
            }
            self.seen += 1;
            self.files.entry(file).or_default().add(used);
        }
    }

    /// Records the name of a file.
    pub fn name(&mut self, file: u64, directory: u64, name: &[u8]) {
        if self.names.len() >= MAX_CACHED_NAMES {
            self.names.clear();
        }
        let name = String::from_utf8_lossy(name).into_owned();
        self.names.insert(file, (directory, name));
    }

    /// Records the path of a directory.
    pub fn path(&mut self, directory: u64, path: &[u8]) {
        if self.paths.len() >= MAX_CACHED_NAMES {
            self.paths.clear();
        }
        let path = String::from_utf8_lossy(path);
        let path = path.trim_end_matches('/').to_owned();
        self.paths.insert(directory, path);
    }

    /// Returns the ids without a name among those used since the last [`Tally::take`].
    pub fn unknown(&self) -> Unknown {
        let mut unknown = Unknown::default();
        for file in self.files.keys() {
            match self.names.get(file) {
                None => unknown.files.push(*file),
                Some((dir, _)) if !self.paths.contains_key(dir) => unknown.directories.push(*dir),
                Some(_) => {}
            }
        }
        unknown.directories.sort_unstable();
        unknown.directories.dedup();
        unknown
    }

    /// Ends an interval of this length: returns the use of files in it, and starts the next one.
    pub fn take(&mut self, length: Duration) -> Hot {
        let seconds = length.as_secs_f64().max(1e-3);
        let mut directories: HashMap<u64, Use> = HashMap::new();
        for (file, used) in &self.files {
            if let Some((dir, _)) = self.names.get(file) {
                directories.entry(*dir).or_default().add(*used);
            }
        }
        let of_file = |id: u64| match self.names.get(&id) {
            Some((dir, name)) => format!("{}/{name}", self.path_of(*dir)),
            None => format!("(file {id:x})"),
        };
        let of_dir = |id: u64| match self.path_of(id) {
            path if path.is_empty() => "/".to_owned(),
            path => path,
        };
        let hot = Hot {
            files: busiest(&self.files, seconds, of_file),
            directories: busiest(&directories, seconds, of_dir),
            lost: std::mem::take(&mut self.lost),
            seen: std::mem::take(&mut self.seen),
            off: false,
        };
        self.files.clear();
        hot
    }

    fn path_of(&self, directory: u64) -> String {
        let path = self.paths.get(&directory).cloned();
        path.unwrap_or_else(|| format!("(directory {directory:x})"))
    }
}

/// Returns the rows of the busiest files or directories.
fn busiest(uses: &HashMap<u64, Use>, seconds: f64, path: impl Fn(u64) -> String) -> Vec<Row> {
    let mut all: Vec<(u64, Use)> = uses.iter().map(|(id, used)| (*id, *used)).collect();
    all.sort_by_key(|(id, u)| (std::cmp::Reverse((u.read + u.written, u.operations)), *id));
    all.truncate(MAX_ROWS);
    let row = |(id, used): (u64, Use)| Row {
        path: path(id),
        operations: used.operations as f64 / seconds,
        read: used.read as f64 / seconds,
        written: used.written as f64 / seconds,
    };
    all.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(point: Point, file: u64, second: u64, text: Option<&str>) -> Record {
        Record {
            number: 0,
            time: 0,
            point: point as u16,
            process: 1,
            thread: 1,
            request: 0,
            fields: [file, second, 0, 0],
            text: text.map(|t| t.as_bytes().to_vec()),
        }
    }

    #[test]
    fn events_are_summed_up_by_file_and_directory() {
        let mut tally = Tally::default();
        tally.add(
            &[
                record(Point::POSIX_OPENED, 7, 2, Some("a")),
                record(Point::POSIX_WRITE_EXIT, 7, 1000, None),
                record(Point::POSIX_WRITE_EXIT, 8, 3000, None),
                record(Point::POSIX_READ_EXIT, 7, 200, None),
                record(Point::STORE_CLOSE, 7, 5, None),
            ],
            3,
        );
        let unknown = tally.unknown();
        assert_eq!((unknown.files, unknown.directories), (vec![8], vec![2]));
        let hot = tally.take(Duration::from_secs(2));
        assert_eq!(
            (hot.files[0].path.as_str(), hot.files[0].written),
            ("(file 8)", 1500.0)
        );
        assert_eq!(hot.files[1].path, "(directory 2)/a");
        assert_eq!((hot.files[1].operations, hot.files[1].read), (1.5, 100.0));
        assert_eq!((hot.lost, hot.seen), (3, 4));
        // The file without a name counts for no directory.
        assert_eq!(
            (hot.directories.len(), hot.directories[0].written),
            (1, 500.0)
        );

        tally.path(2, b"/data/");
        tally.name(8, 2, b"b");
        tally.name(9, 1, b"c");
        tally.path(1, b"/");
        tally.add(
            &[8, 8, 9].map(|file| record(Point::POSIX_READ_EXIT, file, 10, None)),
            0,
        );
        let hot = tally.take(Duration::from_secs(1));
        let paths: Vec<&str> = hot.files.iter().map(|r| r.path.as_str()).collect();
        assert_eq!(paths, ["/data/b", "/c"]);
        let paths: Vec<&str> = hot.directories.iter().map(|r| r.path.as_str()).collect();
        assert_eq!(paths, ["/data", "/"]);
        assert_eq!(tally.take(Duration::from_secs(1)), Hot::default());
    }
}
