//! The end of a staging out of a pool with dead nodes. One sentence in the report tells what is
//! missing, and a file in the destination lists the directories whose path isn't known.
//!
//! The copying itself is the same as in any staging, because
//! [`forebay_backing::PoolStore::salvage`] makes the pool's store show the objects of living nodes.

use crate::{Failure, PART_PREFIX, Report};
use forebay_backing::{Error, Meta, Replaced, SlowStore, Source, join};
use forebay_cluster::{LOST_AND_FOUND, Salvage};
use forebay_media::count;
use rustix::io::{Errno, Result};

/// Name of the file in the destination's `lost+found` that lists directories without a known path.
const LIST: &[u8] = b"LIST";

/// Adds a failure, as the first one, to the report of a staging from `source` to `dst`. The failure
/// tells what couldn't be saved. Writes the list of the directories whose path isn't known.
pub fn conclude(
    salvage: &Salvage,
    source: String,
    to: &dyn SlowStore,
    dst: &[u8],
    report: &mut Report,
) {
    let dead = salvage.dead();
    let list: Vec<String> = dead.iter().map(u32::to_string).collect();
    let (nodes, dont, keep, know) = match dead.len() {
        1 => (
            format!("node {}", list[0]),
            "doesn't",
            "it keeps",
            "it knows",
        ),
        _ => (
            format!("nodes {}", list.join(", ")),
            "don't",
            "they keep",
            "they know",
        ),
    };
    let mut what = format!(
        "{nodes} {dont} answer (forebay status): what {keep} wasn't saved, nor what only {know} of; \
         all else that could be read was saved"
    );
    if !salvage.shown().is_empty() {
        let lost = join(dst, LOST_AND_FOUND);
        what += &format!(
            ", by its path or, in {} whose path isn't known, below {}",
            count(salvage.shown().len() as u64, "directory"),
            to.show(&lost)
        );
        let text = list_text(salvage, &nodes, report);
        if let Err(e) = write_list(to, &lost, text.as_bytes()) {
            let path = to.show(&join(&lost, LIST));
            let what = format!("can't be written: {}", to.explain(e));
            report.failed += 1;
            report.failures.push(Failure { path, what });
        }
    }
    report.failed += 1;
    report.failures.insert(0, Failure { path: source, what });
}

fn list_text(salvage: &Salvage, nodes: &str, report: &Report) -> String {
    let mut text = format!(
        "Forebay saved this when {nodes} didn't answer. The names and attributes of these \
         directories are lost, and so is what only {nodes} knew of:\n"
    );
    for path in salvage.shown() {
        let below = path.strip_prefix(LOST_AND_FOUND).unwrap_or(path);
        text += &format!(".{}\n", String::from_utf8_lossy(below));
    }
    if !report.failures.is_empty() {
        text += "\nNot saved, as far as names are known:\n";
        for failure in &report.failures {
            text += &format!("{}: {}\n", failure.path, failure.what);
        }
        let more = report.failed.saturating_sub(report.failures.len() as u64);
        if more > 0 {
            text += &format!("and {more} more\n");
        }
    }
    text
}

/// Writes the list of the directories whose path isn't known. Replaces an earlier list.
fn write_list(to: &dyn SlowStore, lost: &[u8], text: &[u8]) -> Result<()> {
    let path = join(lost, LIST);
    if to.is_object_store() {
        let whole = Text(text, list_meta(text));
        let put = to.put(&path, &whole, &Vec::new(), Replaced::Seen);
        return put.map(|_| ()).map_err(|trouble| match trouble {
            Error::Read(e) | Error::Write(e) | Error::ReadBack(e) => e,
            _ => Errno::IO,
        });
    }
    let part = join(lost, &[PART_PREFIX, LIST].concat());
    let _ = to.unlink(&part);
    let file = to.create(&part, &path)?;
    let mut written = 0;
    while written < text.len() {
        match file.write_at(&text[written..], written as u64)? {
            0 => return Err(Errno::NOSPC),
            n => written += n,
        }
    }
    file.sync()?;
    file.close()?;
    to.rename(&part, &path, true).map(|_| ())
}

fn list_meta(text: &[u8]) -> Meta {
    Meta {
        dev: 0,
        ino: 0,
        mode: libc::S_IFREG | 0o600,
        nlink: 1,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        size: text.len() as u64,
        atime: 0,
        mtime: 0,
        ctime: 0,
    }
}

/// A text that is stored in an object store, and its metadata.
struct Text<'t>(&'t [u8], Meta);

impl Source for Text<'_> {
    fn meta(&self) -> &Meta {
        &self.1
    }

    fn threads(&self) -> usize {
        1
    }

    fn read(&self, buffer: &mut [u8], at: u64) -> std::result::Result<(), Error> {
        let start = usize::try_from(at).map_err(|_| Error::Changed)?;
        let end = start.saturating_add(buffer.len());
        let bytes = self.0.get(start..end).ok_or(Error::Changed)?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }

    fn count(&self, _: u64) {}

    fn rests(&self) -> std::result::Result<(), Error> {
        Ok(())
    }
}
