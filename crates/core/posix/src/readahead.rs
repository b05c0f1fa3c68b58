//! Read-ahead of files with `consistency = "session"` or `"eventual(BOUND)"`.
//!
//! A process that reads a file on a peer sequentially, in small pieces, gets the bytes from a
//! *window*: the first read also fetches the bytes that follow. With `session`, a window is used
//! until this process opens or closes the file, or gets a lock on it: no byte is older than the
//! description by which it is read. With `eventual`, a window is used until it is older than the
//! bound. A write by the process ends the window.
//!
//! A window doesn't store where the file ends: a read at the end asks the home.

use crate::FileBuffers;
use crate::buffers::Window;
use crate::per_file_cache::Held;
use forebay_client::controls::Consistency;
use forebay_cluster::Cluster;
use forebay_runtime::user::UserSliceMut;
use forebay_store::ObjectId;
use forebay_store::controls::declared;
use rustix::io::Result;
use std::time::{Duration, Instant};

/// Number of bytes fetched for the first read. Each sequential read doubles the number, up to
/// `MAX_AHEAD_BYTES`.
const FIRST: usize = 64 << 10;
const MAX_AHEAD_BYTES: usize = 512 << 10;

impl Window {
    /// The `len` bytes from `at` on, if the window has all of them and isn't older than `bound`.
    fn part(&self, at: u64, len: usize, bound: Option<Duration>) -> Option<&[u8]> {
        let asked_at = self.asked_at?;
        let from = usize::try_from(at.checked_sub(self.at)?).ok()?;
        let bytes = self.bytes.get(from..)?;
        let young = bound.is_none_or(|bound| asked_at.elapsed() < bound);
        (bytes.len() >= len && young).then(|| &bytes[..len])
    }

    /// Fetches bytes from `at` on into the window, for a read of `len` bytes.
    fn fetch(&mut self, cluster: Cluster<'_>, live: u32, at: u64, len: usize) -> Result<()> {
        self.ahead = (2 * self.ahead).clamp(FIRST, MAX_AHEAD_BYTES);
        let want = self.ahead.max(len);
        self.asked_at = None;
        self.at = at;
        self.bytes.clear();
        self.bytes.reserve_exact(want);
        let asked_at = Instant::now();
        // SAFETY: the vector has room for `want` bytes, and the call has written `n` of them.
        unsafe {
            let n = cluster
                .data()
                .read(live, at, self.bytes.as_mut_ptr(), want)?;
            self.bytes.set_len(n);
        }
        self.asked_at = Some(asked_at);
        Ok(())
    }
}

impl FileBuffers<'_> {
    /// Reads through the file's window, if it has one or may get one. None: the caller must read
    /// the file directly.
    ///
    /// # Errors
    /// As for reading; EFAULT.
    pub(crate) fn read_ahead(
        &self,
        live: u32,
        at: u64,
        to: UserSliceMut<'_>,
    ) -> Result<Option<usize>> {
        let len = to.len();
        let cluster = self.cluster();
        let word = cluster.store().declared().controls(live);
        let Some(windows) = self
            .windows()
            .filter(|_| word != 0 && len < MAX_AHEAD_BYTES / 2)
        else {
            return Ok(None);
        };
        let bound = match declared(word).0.resolve().consistency {
            Consistency::Session => None,
            Consistency::Eventual(ms) => Some(Duration::from_millis(ms.into())),
            _ => return Ok(None),
        };
        let id = cluster.store().content().live_id(live);
        if len == 0
            || !cluster.data().is_remote(live)
            || cluster.store().mappings().may_be_copied(live)
        {
            return Ok(None);
        }
        let Some(mut window) = windows.make(id) else {
            return Ok(None);
        };
        if window.part(at, len, bound).is_none() {
            if at != window.next {
                window.ahead = 0;
                window.next = at + len as u64;
                return Ok(None);
            }
            window.fetch(cluster, live, at, len)?;
        }
        let window: &mut Window = &mut window;
        let from = (at - window.at) as usize;
        let bytes = window.bytes.get(from..).unwrap_or(&[]);
        let n = bytes.len().min(len);
        window.next = at + n as u64;
        to.copy_from(&bytes[..n])?;
        Ok(Some(n))
    }

    /// Makes reads of the file fetch their bytes again from now on.
    pub(crate) fn look_again(&self, id: ObjectId) {
        if let Some(window) = self.windows().and_then(|windows| windows.of(id)) {
            self.end_window(window);
        }
    }

    fn end_window(&self, mut window: Held<'_, Window>) {
        *window = Window::default();
        window.free();
    }

    /// As [`FileBuffers::look_again`], for an open file. Called after the process got a lock on the
    /// file, or received a descriptor of it from another process.
    pub fn look_again_open(&self, open: u32) {
        if self.windows().is_some() {
            let id = self
                .store()
                .objects()
                .open_file(open)
                .id
                .load(std::sync::atomic::Ordering::Acquire);
            self.look_again(ObjectId(id));
        }
    }
}
