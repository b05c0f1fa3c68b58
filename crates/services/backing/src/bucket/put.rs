//! Writing objects, in one request or in parts.
//!
//! Guarantees: an object appears only when it is complete, with its attributes, and when the server
//! has its content. To be sure, the server confirms the SHA-256 of each body, or the object is read
//! back and compared. An object replaces only the version that the copier saw ([`Replaces`]). An
//! upload in parts that fails is aborted, and its parts are removed. The next run that writes the
//! same key removes the parts that a killed run has left.
//!
//! If the server confirms no checksums, the object already has its name while it is read back. If
//! the content differs from what was sent, this version is removed, but never a version that others
//! have written. So on a server without conditional deletes, the wrong version isn't removed
//! ([`Error::Damaged`]).

use crate::bucket::attributes::{self, user_headers};
use crate::bucket::calls::{Part, Replaces, Upload, sum_text, without_conditions};
use crate::bucket::fault::{CHANGED, Fault};
use crate::bucket::file::BucketFile;
use crate::bucket::objects::{BucketStore, key, prefix};
use crate::bucket::sign::{hex, sha256};
use crate::error::Error;
use crate::meta::Meta;
use crate::parallel::{for_each, try_map};
use crate::source::Source;
use crate::store::{StoreFile, UserAttributes};
use forebay_runtime::threads::lock;
use rustix::io::{Errno, Result};
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

/// Maximum size of an object that is written in one request, and minimum size of the parts of
/// larger ones. Bytes.
pub const PART: u64 = 8 << 20;
/// Maximum number of parts of an object.
const MAX_PARTS: u64 = 10_000;
/// Maximum size of an object. Bytes.
const LARGEST: u64 = 5 << 40;
/// Maximum size of an object that a server copies in one request. Bytes.
pub(crate) const LARGEST_COPY: u64 = 5 << 30;

type Done<T> = std::result::Result<T, Error>;

fn write(fault: Fault) -> Error {
    Error::Write(fault.errno)
}

/// Returns the size of the parts of an object of `size` bytes.
pub(crate) fn part_size(size: u64) -> u64 {
    size.div_ceil(MAX_PARTS).next_multiple_of(1 << 20).max(PART)
}

pub(crate) fn all_headers(meta: &Meta, user: &UserAttributes) -> Vec<(String, String)> {
    let mut headers = attributes::headers(meta);
    headers.extend(user_headers(user));
    headers
}

/// A range of an object, and the SHA-256 of its bytes in base64.
struct Range {
    start: u64,
    end: u64,
    sum: String,
}

impl BucketStore {
    /// Calls `f` with a condition on the replaced version. If the server supports no conditions,
    /// calls `f` again without one.
    pub(crate) fn conditional<T>(
        &self,
        replaces: &Replaces,
        f: impl Fn(&Replaces) -> std::result::Result<T, Fault>,
    ) -> std::result::Result<T, Fault> {
        match f(replaces) {
            Err(fault) if without_conditions(&fault, replaces) => {
                self.has_conditions.store(false, Relaxed);
                f(&Replaces::Anything)
            }
            done => done,
        }
    }

    /// Stores a file if `replaces` allows it. Returns the new version's ETag.
    ///
    /// # Errors
    /// [`Error`].
    pub(crate) fn put_replacing(
        &self,
        path: &[u8],
        source: &dyn Source,
        replaces: &Replaces,
        user: &UserAttributes,
    ) -> Done<String> {
        let key = key(path).map_err(Error::Write)?;
        if source.meta().size > LARGEST {
            return Err(Error::Write(Errno::FBIG));
        }
        if source.meta().size <= PART {
            self.put_whole(key, source, replaces, user)
        } else {
            self.put_in_parts(key, source, replaces, user)
        }
    }

    /// Stores a directory's marker, with these attributes.
    ///
    /// # Errors
    /// [`Fault`]
    pub(crate) fn put_marker(
        &self,
        path: &[u8],
        meta: &Meta,
        user: &UserAttributes,
    ) -> std::result::Result<(), Fault> {
        let mut headers = all_headers(meta, user);
        headers.push((
            "content-type".to_owned(),
            "application/x-directory".to_owned(),
        ));
        let prefix = prefix(path).map_err(|e| Fault::new(e, ""))?;
        let put = self.client.put(&prefix, b"", &headers, &Replaces::Anything);
        put.map(|_| ())
    }

    fn put_whole(
        &self,
        key: &str,
        source: &dyn Source,
        replaces: &Replaces,
        user: &UserAttributes,
    ) -> Done<String> {
        let size = source.meta().size;
        let mut bytes = vec![0; size as usize];
        source.read(&mut bytes, 0)?;
        source.rests()?;
        let headers = all_headers(source.meta(), user);
        let put = self.conditional(replaces, |replaces| {
            self.client.put(key, &bytes, &headers, replaces)
        });
        let ours = match put {
            Ok(written) if written.is_confirmed => {
                source.count(size);
                return Ok(written.etag);
            }
            Ok(written) => Some(written.etag),
            // An earlier attempt, whose reply was lost, may have written the object.
            Err(fault) if fault.errno == CHANGED && fault.may_be_done => None,
            Err(fault) => return Err(write(fault)),
        };
        let range = Range {
            start: 0,
            end: size,
            sum: sum_text(&sha256(&bytes)),
        };
        let etag = self.read_back(key, (size, ours), &[range], source.threads())?;
        source.count(size);
        Ok(etag)
    }

    fn put_in_parts(
        &self,
        key: &str,
        source: &dyn Source,
        replaces: &Replaces,
        user: &UserAttributes,
    ) -> Done<String> {
        self.remove_leftovers(key);
        let headers = all_headers(source.meta(), user);
        let upload = self.client.begin_upload(key, &headers).map_err(write)?;
        let put = self.put_parts(replaces, &upload, source);
        if put.is_err() {
            // If the server can't be reached, the next run removes the parts.
            let _ = self.client.abort(&upload);
        }
        match put? {
            (ranges, Some(etag)) if ranges.is_empty() => Ok(etag),
            (ranges, ours) => {
                self.read_back(key, (source.meta().size, ours), &ranges, source.threads())
            }
        }
    }

    /// Uploads all parts, and ends the upload. Returns the ranges that still have to be read back,
    /// and the ETag of the written version, if it is known.
    fn put_parts(
        &self,
        replaces: &Replaces,
        upload: &Upload,
        source: &dyn Source,
    ) -> Done<(Vec<Range>, Option<String>)> {
        let (size, each) = (source.meta().size, part_size(source.meta().size));
        let numbers: Vec<u64> = (0..size.div_ceil(each)).collect();
        let parts = try_map(source.threads(), &numbers, |&number| {
            let (start, end) = (number * each, ((number + 1) * each).min(size));
            let mut bytes = vec![0; (end - start) as usize];
            let part = source.read(&mut bytes, start).and_then(|()| {
                let part = self.client.put_part(upload, number as u32 + 1, &bytes);
                part.map_err(write)
            });
            source.count(if part.is_ok() { end - start } else { 0 });
            part
        });
        let mut parts = parts?;
        source.rests()?;
        // The sums in the last request have to be complete. If one part isn't confirmed, none
        // counts as confirmed.
        let is_confirmed = parts.iter().all(|part| part.is_confirmed);
        for part in &mut parts {
            part.is_confirmed = is_confirmed;
        }
        let ended = self.conditional(replaces, |replaces| {
            self.client.end_upload(upload, &parts, replaces)
        });
        let ours = match ended {
            Ok(etag) if is_confirmed && !etag.is_empty() => return Ok((Vec::new(), Some(etag))),
            Ok(etag) => Some(etag),
            // An earlier attempt, whose reply was lost, may have ended the upload.
            Err(fault) if fault.may_be_done && matches!(fault.errno, CHANGED | Errno::NOENT) => {
                None
            }
            Err(fault) => return Err(write(fault)),
        };
        let range = |part: &Part| {
            let start = u64::from(part.number - 1) * each;
            Range {
                start,
                end: (start + each).min(size),
                sum: part.sum.clone(),
            }
        };
        Ok((parts.iter().map(range).collect(), ours))
    }

    /// Compares an object of `size` bytes with the ranges that were sent. `ours`: the ETag of the
    /// written version; None if it isn't known whether one was written. If the object is that
    /// version but differs, it is removed. Returns the ETag of the present version.
    fn read_back(
        &self,
        key: &str,
        (size, ours): (u64, Option<String>),
        ranges: &[Range],
        threads: usize,
    ) -> Done<String> {
        let failed = |fault: Fault| Error::ReadBack(fault.errno);
        let head = self.client.head(key).map_err(failed)?;
        let head = head.ok_or(Error::Write(CHANGED))?;
        let etag = head.etag.clone();
        let is_ours = ours.is_some_and(|ours| ours == etag);
        let mut is_same = Ok(head.meta.size == size);
        if is_same == Ok(true) {
            let file = BucketFile::new(&self.client, key, head);
            let result = Mutex::new(Ok(true));
            for_each(threads, ranges, |range| {
                if !matches!(*lock(&result), Ok(true)) {
                    return;
                }
                let same = sum_of(&file, range).map(|sum| sum == range.sum);
                if !matches!(same, Ok(true)) {
                    *lock(&result) = same;
                }
            });
            is_same = result.into_inner().unwrap_or_else(PoisonError::into_inner);
        }
        match is_same {
            Ok(true) => Ok(etag),
            Ok(false) if is_ours => Err(self.remove_damaged(key, &etag)),
            Ok(false) => Err(Error::Write(CHANGED)),
            Err(e) => Err(Error::ReadBack(e)),
        }
    }

    /// Removes the version `etag` of an object, because its content is wrong, if the server can do
    /// so without risk for a version that others write meanwhile. Returns the error to be reported.
    fn remove_damaged(&self, key: &str, etag: &str) -> Error {
        let is_safe = self.deletes_conditionally.get_or_init(|| {
            let asked = self.client.deletes_conditionally(&probe_beside(key));
            asked.unwrap_or(false)
        });
        if !is_safe {
            return Error::Damaged;
        }
        match self.client.delete_version(key, etag) {
            Ok(()) => Error::Differs,
            Err(fault) if fault.errno == CHANGED => write(fault),
            Err(_) => Error::Damaged,
        }
    }

    /// Removes uploads of a key that other runs had begun before this run's first upload.
    fn remove_leftovers(&self, key: &str) {
        let leftovers = self.leftovers.get_or_init(|| {
            // If listing uploads isn't permitted, leftover uploads exist until a rule of the bucket
            // removes them.
            let mut all: HashMap<String, Vec<String>> = HashMap::new();
            for upload in self.client.uploads(&self.below).unwrap_or_default() {
                all.entry(upload.key).or_default().push(upload.id);
            }
            Mutex::new(all)
        });
        let ids = lock(leftovers).remove(key).unwrap_or_default();
        for id in ids {
            let _ = self.client.abort(&Upload {
                key: key.to_owned(),
                id,
            });
        }
    }
}

/// Returns a new key in the directory of `key`. Listings hide its name, as they hide incomplete
/// files.
fn probe_beside(key: &str) -> String {
    let directory = key.rfind('/').map_or("", |at| &key[..=at]);
    let mut random = [0; 16];
    let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    format!("{directory}.forebay-part-probe-{}", hex(&random))
}

/// Returns the SHA-256 of a range of an object, in base64.
fn sum_of(file: &BucketFile<'_>, range: &Range) -> Result<String> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    let mut have = 0;
    while have < bytes.len() {
        match file.read_at(&mut bytes[have..], range.start + have as u64)? {
            0 => return Err(Errno::IO),
            n => have += n,
        }
    }
    Ok(sum_text(&sha256(&bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::client::{Client, Limits};
    use crate::bucket::secret::Settings;
    use std::io::{BufRead, BufReader, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;

    #[test]
    fn parts_cover_the_largest_object() {
        assert_eq!(part_size(PART + 1), PART);
        for size in [PART + 1, 80 << 30, 81 << 30, 1 << 40, LARGEST] {
            let each = part_size(size);
            assert!(size.div_ceil(each) <= MAX_PARTS && each.is_multiple_of(1 << 20));
        }
    }
    /// A server of one bucket. Objects have numbers as ETags.
    struct Server {
        objects: Mutex<HashMap<String, (u32, Vec<u8>)>>,
        has_conditional_deletes: bool,
        /// Whether another client writes the object `k` just before each removal.
        others_write: bool,
    }

    impl Server {
        /// Starts a server with an object `k`, whose ETag is "1". Returns a store of its bucket.
        fn start(has_conditional_deletes: bool, others_write: bool) -> (Arc<Server>, BucketStore) {
            let object = ("k".to_owned(), (1, b"damaged".to_vec()));
            let server = Arc::new(Server {
                objects: Mutex::new(HashMap::from([object])),
                has_conditional_deletes,
                others_write,
            });
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let settings = Settings {
                anonymous: true,
                endpoint: Some(format!("http://{}", listener.local_addr().unwrap())),
                ..Settings::default()
            };
            let answering = server.clone();
            std::thread::spawn(move || {
                for connection in listener.incoming().map_while(std::result::Result::ok) {
                    let _ = answering.answer(connection);
                }
            });
            let client = Client::new("abc", &settings, Limits::default()).unwrap();
            (server, BucketStore::with_client(client))
        }

        fn answer(&self, connection: TcpStream) -> std::io::Result<()> {
            let mut lines = BufReader::new(&connection).lines();
            let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
            let mut condition = None;
            for line in lines.map_while(std::result::Result::ok) {
                match line.to_lowercase().split_once(": ") {
                    Some(("if-match", etag)) => condition = Some(etag.to_owned()),
                    Some(_) => {}
                    None => break,
                }
            }
            let mut words = first.split(' ');
            let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
            let key = path.trim_start_matches("/abc/").to_owned();
            let mut objects = lock(&self.objects);
            if method == "DELETE" && key == "k" && self.others_write {
                objects.insert(key.clone(), (2, b"theirs".to_vec()));
            }
            let there = objects.get(&key).cloned();
            let is_other = |(etag, _): &(u32, Vec<u8>)| {
                condition
                    .as_ref()
                    .is_some_and(|c| *c != format!("\"{etag}\""))
            };
            let head = |status: &str, etag: u32, length: usize| {
                format!(
                    "HTTP/1.1 {status}\r\netag: \"{etag}\"\r\ncontent-length: {length}\r\n\
                     connection: close\r\n"
                )
            };
            let reply = match (method, there) {
                ("PUT", _) => {
                    objects.insert(key, (7, Vec::new()));
                    head("200 OK", 7, 0) + "\r\n"
                }
                ("DELETE", Some(there)) if is_other(&there) && self.has_conditional_deletes => {
                    head("412 Precondition Failed", 0, 0) + "\r\n"
                }
                ("DELETE", _) => {
                    objects.remove(&key);
                    "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n".to_owned()
                }
                ("HEAD", Some((etag, bytes))) => head("200 OK", etag, bytes.len()) + "\r\n",
                ("GET", Some((etag, bytes))) => {
                    let (n, text) = (bytes.len(), String::from_utf8_lossy(&bytes).into_owned());
                    let range = format!("content-range: bytes 0-{}/{n}\r\n\r\n{text}", n - 1);
                    head("206 Partial Content", etag, n) + &range
                }
                _ => head("404 Not Found", 0, 0) + "\r\n",
            };
            (&connection).write_all(reply.as_bytes())
        }
    }

    /// Reads the stored object `k`, as if other bytes of its length had been sent.
    fn read_back(store: &BucketStore) -> Error {
        let range = Range {
            start: 0,
            end: 7,
            sum: sum_text(&sha256(b"as sent")),
        };
        let result = store.read_back("k", (7, Some("\"1\"".into())), &[range], 1);
        result.unwrap_err()
    }

    #[test]
    fn a_damaged_object_is_removed_but_none_of_others() {
        for (has_conditional_deletes, others_write, trouble, left) in [
            (true, false, Error::Differs, None),
            (true, true, Error::Write(CHANGED), Some(&b"theirs"[..])),
            (false, false, Error::Damaged, Some(b"damaged")),
            (false, true, Error::Damaged, Some(b"damaged")),
        ] {
            let (server, store) = Server::start(has_conditional_deletes, others_write);
            assert_eq!(read_back(&store), trouble);
            let objects = lock(&server.objects);
            let there: Vec<_> = objects.iter().map(|(k, o)| (&k[..], &o.1[..])).collect();
            let wanted: Vec<_> = left.into_iter().map(|bytes| ("k", bytes)).collect();
            assert_eq!(there, wanted);
        }
    }
}
