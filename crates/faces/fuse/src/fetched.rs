//! Keeps the content of mapped pages as the kernel received it.
//!
//! The kernel writes back whole pages, whichever bytes a program has stored to. Writing back must
//! not undo what other processes have meanwhile written to other bytes of the page. So a page's
//! bytes are kept as of the last time when kernel and file agreed. Only bytes that differ from the
//! kept ones are written ([`Fs::merge`](forebay_posix::Fs::merge)), and conflicting changes of the
//! same bytes are detected.
//!
//! Only files opened for reading and writing through this mount can have writable mappings. Pages
//! that the kernel got before the first such open needn't be kept: the kernel forgets all pages of
//! a file when the file is mapped. Memory is bounded: beyond [`MAX_PAGES`] pages, the kernel is
//! told to forget the pages of the file that has most. A page without kept content is written back
//! whole.

use crate::notices::Notices;
use forebay_runtime::threads::lock;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

/// Size of a page. Bytes.
pub const PAGE: usize = 4096;
/// Maximum number of pages kept (256 MiB). Twice as many may be kept until the kernel has forgotten
/// some.
const MAX_PAGES: usize = 1 << 16;

/// The kept content of mapped pages, by the node numbers of the files.
#[derive(Default)]
pub struct Fetched(Mutex<Files>);

#[derive(Default)]
struct Files {
    by_node: HashMap<u64, File>,
    /// Number of pages of all files.
    pages: usize,
    /// Number of pages that were added or replaced so far.
    clock: u64,
}

#[derive(Default)]
struct File {
    /// Number of opens for reading and writing.
    writers: usize,
    pages: HashMap<u64, Page>,
}

struct Page {
    bytes: Box<[u8; PAGE]>,
    /// Value of the clock when the page was added.
    age: u64,
}

impl Files {
    /// Records that the kernel's page `n` of a file consists of `bytes`, and zeros after them.
    fn put(&mut self, node: u64, n: u64, bytes: &[u8]) {
        let Some(file) = self.by_node.get_mut(&node) else {
            return;
        };
        self.clock += 1;
        let age = self.clock;
        let fill = |page: &mut [u8; PAGE]| {
            page[..bytes.len()].copy_from_slice(bytes);
            page[bytes.len()..].fill(0);
        };
        if let Some(page) = file.pages.get_mut(&n) {
            fill(&mut page.bytes);
            page.age = age;
        } else if self.pages < 2 * MAX_PAGES {
            let mut bytes = Box::new([0; PAGE]);
            fill(&mut bytes);
            file.pages.insert(n, Page { bytes, age });
            self.pages += 1;
        }
    }

    fn keep(&mut self, node: u64, is_kept: impl Fn(u64, &Page) -> bool) {
        if let Some(file) = self.by_node.get_mut(&node) {
            let before = file.pages.len();
            file.pages.retain(|&n, page| is_kept(n, page));
            self.pages -= before - file.pages.len();
        }
    }
}

impl Fetched {
    fn files(&self) -> MutexGuard<'_, Files> {
        lock(&self.0)
    }

    /// Records that a file was opened for reading and writing.
    pub fn opened(&self, node: u64) {
        self.files().by_node.entry(node).or_default().writers += 1;
    }

    /// Records that a descriptor for reading and writing was closed, with its mappings. After the
    /// last such close, drops the file's pages.
    pub fn closed(&self, node: u64) {
        let mut files = self.files();
        let Some(file) = files.by_node.get_mut(&node) else {
            return;
        };
        file.writers = file.writers.saturating_sub(1);
        if file.writers == 0 {
            let pages = file.pages.len();
            files.by_node.remove(&node);
            files.pages -= pages;
        }
    }

    /// Records that the kernel's pages of a file from `at` on contain `bytes`; if the bytes end
    /// inside a page, the file ends there. Must be called before the kernel gets the bytes, or
    /// after it has written them back.
    pub fn agree(&self, node: u64, at: u64, bytes: &[u8]) {
        if !at.is_multiple_of(PAGE as u64) {
            return;
        }
        let mut files = self.files();
        for (n, page) in (at / PAGE as u64..).zip(bytes.chunks(PAGE)) {
            files.put(node, n, page);
        }
    }

    /// Records that the kernel was given the byte at `at`, the last one of the file.
    pub fn got_byte(&self, node: u64, at: u64, byte: u8) {
        let (n, within) = (at / PAGE as u64, at as usize % PAGE);
        let mut files = self.files();
        if within == 0 {
            // The kernel considers the page complete with this byte alone.
            return files.put(node, n, &[byte]);
        }
        let file = files.by_node.get_mut(&node);
        if let Some(page) = file.and_then(|f| f.pages.get_mut(&n)) {
            page.bytes[within] = byte;
        }
    }

    /// Records that the kernel has truncated the file, or assumes this size.
    pub fn cut(&self, node: u64, size: u64) {
        let (n, within) = (size / PAGE as u64, size as usize % PAGE);
        let mut files = self.files();
        files.keep(node, |at, _| at < n + u64::from(within > 0));
        let file = files.by_node.get_mut(&node);
        if let Some(page) = file.and_then(|f| f.pages.get_mut(&n)) {
            page.bytes[within..].fill(0);
        }
    }

    /// Returns the kept content of the pages `now`, which the kernel writes back at `at`: pieces,
    /// each with its length in bytes and its content, if that is kept.
    pub fn before(&self, node: u64, at: u64, now: &[u8]) -> Vec<(usize, Option<Vec<u8>>)> {
        let mut pieces: Vec<(usize, Option<Vec<u8>>)> = Vec::new();
        if !at.is_multiple_of(PAGE as u64) {
            return vec![(now.len(), None)];
        }
        let files = self.files();
        let file = files.by_node.get(&node);
        for (n, page) in (at / PAGE as u64..).zip(now.chunks(PAGE)) {
            let known = file.and_then(|f| f.pages.get(&n));
            let known = known.map(|p| &p.bytes[..page.len()]);
            match (pieces.last_mut(), known) {
                (Some((len, Some(all))), Some(known)) => {
                    all.extend_from_slice(known);
                    *len += page.len();
                }
                (Some((len, None)), None) => *len += page.len(),
                _ => pieces.push((page.len(), known.map(<[u8]>::to_vec))),
            }
        }
        pieces
    }

    /// Makes the kernel forget pages if the content of more than [`MAX_PAGES`] pages is kept. Must
    /// not be called while a request is being answered: the notice may wait for other replies.
    pub fn trim(&self, notices: &Notices) {
        let (node, clock) = {
            let files = self.files();
            if files.pages <= MAX_PAGES {
                return;
            }
            let largest = files.by_node.iter().max_by_key(|(_, f)| f.pages.len());
            let Some((&node, _)) = largest else { return };
            (node, files.clock)
        };
        // The kernel writes back changed pages first. It may keep pages that it gets from now on,
        // so the content of these pages isn't dropped below.
        notices.forget_pages(node);
        self.files().keep(node, |_, page| page.age > clock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_known_while_the_file_is_open_for_writing() {
        let fetched = Fetched::default();
        let now = vec![7; 3 * PAGE];
        fetched.agree(5, 0, &now);
        assert_eq!(fetched.before(5, 0, &now), [(now.len(), None)]);
        fetched.opened(5);
        fetched.opened(5);
        fetched.agree(5, PAGE as u64, &[3; PAGE + 10]);
        let mut second = vec![3; PAGE + 10];
        second.resize(2 * PAGE, 0);
        let known = [(PAGE, None), (2 * PAGE, Some(second))];
        assert_eq!(fetched.before(5, 0, &now), known);
        // Only a part of the last page is written back.
        assert_eq!(
            fetched.before(5, PAGE as u64, &now[..PAGE + 4])[0].0,
            PAGE + 4
        );
        fetched.closed(5);
        assert_eq!(fetched.before(5, 0, &now), known);
        fetched.closed(5);
        assert_eq!(fetched.before(5, 0, &now), [(now.len(), None)]);
        assert_eq!(fetched.files().pages, 0);
    }

    #[test]
    fn what_the_kernel_cuts_is_zero() {
        let fetched = Fetched::default();
        let now = vec![7; 2 * PAGE];
        fetched.opened(5);
        fetched.agree(5, 0, &now);
        fetched.cut(5, PAGE as u64 + 1);
        fetched.cut(5, PAGE as u64 + 5);
        let mut second = vec![0; PAGE];
        second[0] = 7;
        assert_eq!(
            fetched.before(5, PAGE as u64, &now[PAGE..]),
            [(PAGE, Some(second.clone()))]
        );
        fetched.got_byte(5, PAGE as u64 + 9, 1);
        second[9] = 1;
        assert_eq!(
            fetched.before(5, PAGE as u64, &now[PAGE..]),
            [(PAGE, Some(second))]
        );
        fetched.cut(5, PAGE as u64);
        assert_eq!(fetched.before(5, PAGE as u64, &now[PAGE..]), [(PAGE, None)]);
        fetched.got_byte(5, PAGE as u64, 4);
        assert!(
            fetched.before(5, PAGE as u64, &now[PAGE..])[0]
                .1
                .as_ref()
                .is_some_and(|b| b[0] == 4)
        );
        fetched.cut(5, 0);
        assert_eq!(fetched.files().pages, 0);
    }
}
