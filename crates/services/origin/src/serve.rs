//! The request server: a socket in the node's directory, and a thread for each request.
//!
//! While a request is carried out, its process gets a sign of life in each second in which the
//! service has made any progress. Only processes of the pool's user can connect, because of the
//! directory's mode.

use crate::error::{Done, Error};
use crate::marks::is_clean;
use crate::room::part_here;
use crate::service::Origin;
use crate::side::for_programs;
use crate::status::Status;
use forebay_client::origin::{MESSAGE, PROGRESS, Request, SOCKET, encode_result};
use forebay_posix::ObjectId;
use forebay_store::{OriginState, RenameMode};
use rustix::fd::OwnedFd;
use rustix::io::{Errno, Result};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with,
    bind, listen, recv, send, socket_with,
};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Maximum number of requests that are carried out at the same time. Further ones wait in the
/// socket's queue.
const REQUESTS: usize = 256;
/// Maximum time that a process may take to send its request.
const REQUEST_READ_TIMEOUT: Duration = Duration::from_secs(5);
const SIGN: Duration = Duration::from_secs(1);
/// Maximum time that a request for more quota waits for copies in progress: the bytes of a file
/// that was removed during its copy are freed only when the copy ends.
const COPY_END_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum number of failures that a reply names.
const NAMED: usize = 20;

/// A server of requests: the service, or a copier.
pub trait Answers: Send + Sync + 'static {
    /// Carries out a request, and returns the reply's text. Blocks.
    fn answer(self: &Arc<Self>, request: &Request) -> Done<String>;
    /// Returns the errno that programs get for this error.
    fn for_programs(&self, error: Errno) -> Errno {
        error
    }
    /// Returns a counter that increases with the progress of any request.
    fn moved(&self) -> &AtomicU64;
}

/// Starts to accept requests, on a socket in the node's directory.
pub fn start(dir: &Path, origin: &Arc<impl Answers>) -> Result<()> {
    let path = dir.join(SOCKET);
    match rustix::fs::unlink(&path) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(e) => return Err(e),
    }
    let kind = SocketType::SEQPACKET;
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddrUnix::new(&path)?)?;
    listen(&socket, 1024)?;
    let origin = origin.clone();
    let thread = std::thread::Builder::new().name("fb-origin".into());
    let started = thread.spawn(move || accept_for_ever(&origin, &socket));
    started.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::AGAIN))?;
    Ok(())
}

fn accept_for_ever(origin: &Arc<impl Answers>, socket: &OwnedFd) {
    let running = Arc::new(AtomicUsize::new(0));
    loop {
        while running.load(Acquire) >= REQUESTS {
            std::thread::sleep(Duration::from_millis(1));
        }
        let connection = match accept_with(socket, SocketFlags::CLOEXEC) {
            Ok(connection) => connection,
            // The process has closed the connection, or this process has no free descriptor at the
            // moment.
            Err(_) => {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            }
        };
        running.fetch_add(1, AcqRel);
        let (origin, counted) = (origin.clone(), running.clone());
        let work = move || {
            serve(&origin, &connection);
            counted.fetch_sub(1, AcqRel);
        };
        if std::thread::Builder::new().spawn(work).is_err() {
            running.fetch_sub(1, AcqRel);
        }
    }
}

fn serve(origin: &Arc<impl Answers>, connection: &OwnedFd) {
    let _ = rustix::net::sockopt::set_socket_timeout(
        connection,
        rustix::net::sockopt::Timeout::Recv,
        Some(REQUEST_READ_TIMEOUT),
    );
    let mut message = vec![0; MESSAGE];
    let Ok((_, n)) = recv(connection, &mut message[..], RecvFlags::empty()) else {
        return;
    };
    let request = Request::decode(&message[..n.min(MESSAGE)]);
    let reply = |done: Done<String>| {
        let bytes = match &done {
            Ok(text) => encode_result(0, text),
            Err(error) => {
                let e = origin.for_programs(error.errno);
                encode_result(e.raw_os_error(), &error.sentence)
            }
        };
        let _ = send(connection, &bytes, SendFlags::NOSIGNAL);
    };
    let Some(request) = request else {
        return reply(Err(Error::new(Errno::PROTO, "that is no request")));
    };
    let (tell, told) = channel();
    let worker = origin.clone();
    let started = std::thread::Builder::new().spawn(move || {
        let _ = tell.send(worker.answer(&request));
    });
    if started.is_err() {
        return reply(Err(Error::new(Errno::AGAIN, "there are no threads left")));
    }
    let mut moved = origin.moved().load(Relaxed);
    loop {
        match told.recv_timeout(SIGN) {
            Ok(done) => return reply(done),
            Err(RecvTimeoutError::Disconnected) => {
                let why = "the origin service has failed (see keeper.log)";
                return reply(Err(Error::new(Errno::IO, why)));
            }
            Err(RecvTimeoutError::Timeout) => {
                let now = origin.moved().load(Relaxed);
                if now != moved {
                    moved = now;
                    // If the process has ended, sending fails, and its request is carried out all
                    // the same.
                    let _ = send(connection, &[PROGRESS], SendFlags::NOSIGNAL);
                }
            }
        }
    }
}

impl Answers for Origin {
    fn for_programs(&self, error: Errno) -> Errno {
        for_programs(&*self.shared.side, error)
    }

    fn moved(&self) -> &AtomicU64 {
        self.shared.moved()
    }

    fn answer(self: &Arc<Self>, request: &Request) -> Done<String> {
        let done = match request {
            // Requests whose reply has a text.
            Request::Range {
                id,
                dir,
                name,
                at,
                length,
            } => {
                let range = (*at, *length);
                return self.ranges.bring_range(*id, (*dir, name), range);
            }
            Request::Evict { path } => return self.evict(path),
            Request::Prefetch { path } => return self.prefetch(path),
            Request::Usage {} => return self.usage(),
            Request::Status {} => return self.status(),
            // Requests whose reply is empty.
            Request::Entries { dir } => self.bring_entries(*dir),
            Request::Bytes { id, dir, name, cut } => {
                self.bytes.bring_bytes(*id, (*dir, name), *cut)
            }
            Request::Attributes { id, dir, name } => {
                let brought = self.bytes.bring_attributes(*id, (*dir, name));
                brought.map_err(Error::from)
            }
            Request::Remove { dir, name, id } => self.names.remove((*dir, name), *id),
            Request::Link { id, known, to } => {
                let (known, to) = ((known.0, &known.1[..]), (to.0, &to.1[..]));
                self.links.link(*id, known, to)
            }
            Request::Rename {
                from,
                to,
                id,
                replaced,
                may_replace,
            } => {
                let (from, to) = ((from.0, &from.1[..]), (to.0, &to.1[..]));
                let mode = rename_mode(*may_replace);
                self.names.rename(from, to, (*id, *replaced), mode)
            }
            Request::Settle { dir } => self.settle(*dir),
            Request::OriginOnly { dir } => {
                let shown = self.origin_only.show_origin_only(*dir);
                shown.map_err(Error::from)
            }
            Request::Sync { path } => self.sync(path),
            Request::SyncFile { id, dir, name } => self.drain.sync_file(*id, (*dir, name)),
            Request::Room { id, bytes } => self.room.make_room(*id, *bytes).map_err(Error::from),
            Request::Grant { node, bytes, files } => self.grant(*node, (*bytes, *files)),
            Request::Quota { bytes, files } => {
                let set = self.quota.set(&self.shared.fs, *bytes, *files);
                set.map_err(Error::from)
            }
            Request::Pin { path, is_pinned } => self.pin(path, *is_pinned),
            Request::Hold { is_held } => self.settings.hold(*is_held).map_err(Error::from),
            // Orders are for copiers, and this is the service.
            Request::Order { .. } => Err(Errno::PROTO.into()),
        };
        done.map(|()| String::new())
    }
}

fn rename_mode(may_replace: bool) -> RenameMode {
    if may_replace {
        RenameMode::Replace
    } else {
        RenameMode::NoReplace
    }
}

impl Origin {
    /// Returns the path at the origin of a path of the pool.
    fn relative<'p>(&self, path: &'p [u8]) -> Done<&'p [u8]> {
        let none = || Error::new(Errno::XDEV, "the origin isn't behind that path");
        match path {
            b"" => Ok(b""),
            path => self.shared.config.relative(path).ok_or_else(none),
        }
    }

    /// As [`Origin::relative`], for a path whose bytes are to be in the pool: fails if the path's
    /// mode is `off`.
    fn cached<'p>(&self, path: &'p [u8]) -> Done<&'p [u8]> {
        let relative = self.relative(path)?;
        if self.shared.is_origin_only(relative, libc::S_IFDIR) {
            let shown = self.shared.side.show(relative);
            let why = format!("{shown} is never in the pool: its mode is off");
            return Err(Error::new(Errno::INVAL, why));
        }
        Ok(relative)
    }

    fn bring_entries(&self, dir: ObjectId) -> Done {
        self.listing.bring_entries(dir).map_err(|e| {
            let relative = self.tree.relative_of(dir).unwrap_or_default();
            Error::new(e, self.shared.error_text(&relative, "can't be listed", e))
        })
    }

    fn settle(&self, dir: ObjectId) -> Done {
        let _held = self.tree.paths();
        match self.directories.settle(dir) {
            Ok(_) => Ok(()),
            Err(e) => {
                let why = forebay_backing::explain(e);
                let why = format!("the directory can't be made at the origin: {why}");
                Err(Error::new(e, why))
            }
        }
    }

    fn evict(&self, path: &[u8]) -> Done<String> {
        let (files, bytes) = self.room.evict(self.cached(path)?)?;
        Ok(format!("{files} {bytes}"))
    }

    fn prefetch(&self, path: &[u8]) -> Done<String> {
        let (files, failed) = self.bytes.prefetch(self.cached(path)?)?;
        if failed.is_empty() {
            Ok(files.to_string())
        } else {
            Err(Error::new(Errno::IO, failed.join("\n")))
        }
    }

    fn pin(&self, path: &[u8], is_pinned: bool) -> Done {
        Ok(self.settings.pin(self.cached(path)?, is_pinned)?)
    }

    fn grant(&self, node: u32, wanted: (u64, u64)) -> Done {
        let grant = || self.quota.grant(&self.shared.fs, node, wanted);
        let mut granted = grant();
        // If a file was removed while it is being copied, its bytes use up quota until the copy
        // ends.
        if granted == Err(Errno::DQUOT) && self.marks.wait_for_current(COPY_END_TIMEOUT) {
            granted = grant();
        }
        Ok(granted?)
    }

    fn usage(&self) -> Done<String> {
        let Some(usage) = self.quota.status(&self.shared.fs) else {
            return Ok(String::new());
        };
        serde_json::to_string(&usage).map_err(|_| Errno::IO.into())
    }

    fn sync(&self, path: &[u8]) -> Done {
        let relative = self.relative(path)?;
        if self.shared.is_origin_only(relative, libc::S_IFDIR) {
            // None of the directory's bytes is in the pool, so nothing has to be written back.
            return Ok(());
        }
        let Err(failed) = self.drain.sync(relative) else {
            return Ok(());
        };
        let mut text = String::new();
        for (at, why) in failed.iter().take(NAMED) {
            let _ = writeln!(text, "{}: {why}", self.shared.side.show(at));
        }
        if failed.len() > NAMED {
            let _ = writeln!(text, "and {} more", failed.len() - NAMED);
        }
        Err(Error::new(Errno::IO, text))
    }

    /// Removes the problems of objects that have been written back since, or were removed. A pass
    /// records its problems at its end, and another pass may have solved some by then.
    fn forget_solved(&self) {
        for relative in self.shared.ledger.unwritten() {
            let found = self
                .shared
                .fs
                .stat(&self.shared.pool_path(&relative), false);
            let id = found.map(|found| ObjectId(found.ino));
            let is_solved = match id.and_then(|id| self.shared.inode(id)) {
                Err(e) => e == Errno::NOENT,
                // If the file has several names, the failed one may still be missing at the origin.
                Ok(inode) if inode.is_file() => inode.nlink == 1 && is_clean(&inode),
                Ok(inode) if inode.is_dir() => {
                    inode.origin.state != OriginState::None
                        && id
                            .and_then(|id| self.marks.print_of_dir(id, &inode))
                            .is_ok_and(|now| now == inode.origin.synced)
                }
                Ok(inode) => is_clean(&inode),
            };
            if is_solved {
                self.shared.ledger.is_solved(&relative);
            }
        }
    }

    fn status(&self) -> Done<String> {
        let mut status = Status {
            origin: self.shared.config.path.clone(),
            at: self.shared.config.at.clone(),
            mode: self.shared.config.mode.to_string(),
            fetched_files: self.shared.ledger.fetched.files.load(Relaxed),
            fetched_bytes: self.shared.ledger.fetched.bytes.load(Relaxed),
            written_files: self.shared.ledger.written.files.load(Relaxed),
            written_bytes: self.shared.ledger.written.bytes.load(Relaxed),
            evicted_files: self.shared.ledger.evicted.files.load(Relaxed),
            evicted_bytes: self.shared.ledger.evicted.bytes.load(Relaxed),
            waited: self.shared.ledger.waited.files.load(Relaxed),
            waited_ms: self.shared.ledger.waited.bytes.load(Relaxed),
            is_held: self.settings.is_held(),
            watched_dirs: self.watches.watched(),
            other_nodes_bytes: self.orders.copied_bytes(),
            quota: self.quota.status(&self.shared.fs),
            ..Status::default()
        };
        self.forget_solved();
        (status.problems, status.more_problems, status.conflicts) = self.shared.ledger.listed();
        self.tree.each_object(b"", &mut |_, at, _, inode| {
            if !inode.is_file() || self.shared.is_origin_only(at, libc::S_IFREG) {
                return Ok(());
            }
            let mark = inode.origin;
            if mark.is_released() && inode.pages > 0 {
                status.partial_files += 1;
                status.partial_bytes += part_here(inode);
            }
            let (files, bytes) = match mark.state {
                OriginState::Released => (&mut status.released_files, &mut status.released_bytes),
                OriginState::Archived if mark.synced == inode.ctime => {
                    (&mut status.archived_files, &mut status.archived_bytes)
                }
                _ => (&mut status.dirty_files, &mut status.dirty_bytes),
            };
            *files += 1;
            *bytes += inode.size;
            Ok(())
        })?;
        serde_json::to_string(&status).map_err(|_| Errno::IO.into())
    }
}
