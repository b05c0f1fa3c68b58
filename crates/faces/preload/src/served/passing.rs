//! Passing of pool descriptors over Unix sockets (SCM_RIGHTS).
//!
//! The kernel would pass on the placeholder, which means nothing to the receiver. So the sender
//! replaces it with a *ticket*: a memory file that names the open file description. Meanwhile the
//! sender's table holds an extra reference to the description, under a number that no descriptor
//! has (the store's parking places). If the sender dies, that reference is released. The receiver
//! of a ticket takes over the reference and replaces the ticket with a pool descriptor. If
//! the reference is gone (the sender has ended), the file is opened again at the same offset; if
//! the open fails, all calls on the descriptor give EBADF. A ticket that nobody receives keeps its
//! file open until the sender ends. The ticket is passed as an O_PATH descriptor: a receiver that
//! doesn't see the pool gets EBADF when it reads or writes.

use crate::pool::{self, fds, placeholder};
use crate::program::{messages, results, user};
use crate::served::{fd_table, nodes};
use forebay_intercept::{PASS, raw};
use forebay_posix::{Entry, Errno, Fs, ObjectId, Parked};
use forebay_store::process::Critical;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::OFlags;

const NAME: &std::ffi::CStr = c"forebay-passed";
const SHOWN: &[u8] = b"/memfd:forebay-passed";

/// The content of a ticket's file.
#[repr(C)]
#[derive(Clone, Copy)]
struct Ticket {
    pool: [u8; 40],
    /// Where the extra reference is recorded.
    parked: Parked,
    /// The fields from here on serve to open the file again.
    id: u64,
    parent: u64,
    offset: u64,
    kind: u32,
    flags: u32,
}

const LEN: usize = size_of::<Ticket>();

/// Returns the pool's id.
fn pool(fs: &Fs) -> [u8; 40] {
    let mut id = [0; 40];
    let uuid = fs.pool().config().uuid.as_bytes();
    let n = uuid.len().min(id.len());
    id[..n].copy_from_slice(&uuid[..n]);
    id
}

/// One control message: the range of its data in the buffer, and whether it passes descriptors.
struct Part {
    data: std::ops::Range<usize>,
    is_rights: bool,
}

/// Returns the control messages of a buffer.
fn parts(control: &[u8]) -> impl Iterator<Item = Part> + '_ {
    const HEAD: usize = size_of::<libc::cmsghdr>();
    let mut at = 0;
    std::iter::from_fn(move || {
        let head = control.get(at..at + HEAD)?;
        let word = |i: usize| i32::from_ne_bytes([head[i], head[i + 1], head[i + 2], head[i + 3]]);
        let len = usize::from_ne_bytes(head[..8].try_into().ok()?);
        if len < HEAD {
            return None;
        }
        let data = at + HEAD..at.saturating_add(len).min(control.len());
        at = at.checked_add(len.checked_next_multiple_of(8)?)?;
        Some(Part {
            data,
            is_rights: (word(8), word(12)) == (libc::SOL_SOCKET, libc::SCM_RIGHTS),
        })
    })
}

/// Returns the offsets of the descriptors in a control buffer.
fn rights(control: &[u8]) -> Vec<usize> {
    parts(control)
        .filter(|p| p.is_rights)
        .flat_map(|p| p.data.step_by(4).filter(|&i| i + 4 <= control.len()))
        .collect()
}

fn number(control: &[u8], at: usize) -> i32 {
    i32::from_ne_bytes([
        control[at],
        control[at + 1],
        control[at + 2],
        control[at + 3],
    ])
}

/// Maximum length of a control buffer that is read; the kernel accepts no longer one. Bytes.
const MAX_CONTROL: usize = 1 << 20;

fn has_control(m: &libc::msghdr) -> bool {
    let room = size_of::<libc::cmsghdr>()..=MAX_CONTROL;
    !m.msg_control.is_null() && room.contains(&m.msg_controllen)
}

/// Returns a copy of a message's control buffer.
///
/// # Safety
/// `m` is a message of the program.
unsafe fn control(m: &libc::msghdr) -> Result<Vec<u8>, Errno> {
    if !has_control(m) {
        return Ok(Vec::new());
    }
    // SAFETY: any bytes are valid; a bad address is caught.
    unsafe { user::take_list(m.msg_control as i64, m.msg_controllen) }
}

/// A message to send, with the buffers to which its header points.
struct Changed {
    header: libc::msghdr,
    _address: Option<Box<libc::sockaddr_un>>,
    _control: Vec<u8>,
    tickets: Vec<(OwnedFd, Ticket)>,
}

/// Returns the message to pass to the kernel instead of `m`; None: `m` itself.
unsafe fn outgoing(m: &libc::msghdr) -> Result<Option<Changed>, Errno> {
    // SAFETY: the caller read `m` from the program, which passed these addresses in it.
    let address = unsafe { nodes::peer(m.msg_name as i64, i64::from(m.msg_namelen))? };
    // SAFETY: as above.
    let given = unsafe { control(m)? };
    let ours = |&i: &usize| fds::pool_file(number(&given, i)).is_some();
    let _critical = Critical::enter();
    let any =
        !given.is_empty() && parts(&given).any(|p| p.is_rights) && rights(&given).iter().any(ours);
    if address.is_none() && !any {
        return Ok(None);
    }
    let mut c = Changed {
        header: *m,
        _address: address.map(|(a, _)| Box::new(a)),
        _control: given.clone(),
        tickets: Vec::new(),
    };
    if let (Some(a), Some((_, n))) = (&c._address, address) {
        c.header.msg_name = (&raw const **a).cast_mut().cast();
        c.header.msg_namelen = n as u32;
    }
    for i in rights(&given).into_iter().filter(ours) {
        let Some((fs, _)) = fds::pool_file(number(&given, i)) else {
            continue;
        };
        match write_ticket(fs, number(&given, i)) {
            Ok((file, ticket)) => {
                c._control[i..i + 4].copy_from_slice(&file.as_raw_fd().to_ne_bytes());
                c.tickets.push((file, ticket));
            }
            Err(e) => {
                take_back(&c.tickets);
                return Err(e);
            }
        }
    }
    if any {
        c.header.msg_control = c._control.as_mut_ptr().cast();
    }
    Ok(Some(c))
}

/// Makes a ticket for the description of `fd`, and the extra reference that the ticket names.
fn write_ticket(fs: &Fs, fd: i32) -> Result<(OwnedFd, Ticket), Errno> {
    let parked = fs.descriptors().park(fd)?;
    fs.buffers().write_back_open(parked.open());
    let description = fs.description(parked.open());
    let ticket = Ticket {
        pool: pool(fs),
        parked,
        id: description.id().0,
        parent: description.parent().0,
        offset: description.offset(),
        kind: description.kind(),
        flags: description.flags() as u32,
    };
    // SAFETY: `ticket` consists of LEN bytes of numbers without padding, and outlives the slice.
    let bytes = unsafe { std::slice::from_raw_parts((&raw const ticket).cast::<u8>(), LEN) };
    let made = rustix::fs::memfd_create(NAME, rustix::fs::MemfdFlags::CLOEXEC)
        .and_then(|file| rustix::io::pwrite(&file, bytes, 0).map(|_| file))
        .and_then(|file| reopen(file.as_raw_fd(), OFlags::PATH));
    match made {
        Ok(file) => Ok((file, ticket)),
        Err(e) => {
            fs.descriptors().drop_parked(&parked);
            Err(e)
        }
    }
}

fn reopen(fd: i32, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{fd}");
    rustix::fs::open(path, flags | OFlags::CLOEXEC, rustix::fs::Mode::empty())
}

/// Drops the references that `tickets` name: the message with these tickets wasn't sent.
fn take_back(tickets: &[(OwnedFd, Ticket)]) {
    let Some(fs) = pool::open_fs() else { return };
    for (_, t) in tickets {
        fs.descriptors().drop_parked(&t.parked);
    }
}

/// Whether the kernel accepts a message's vector, which it checks before the address.
fn is_whole(m: &libc::msghdr) -> bool {
    let mut vector = user::Vector::new();
    // SAFETY: the program passed the vector to this call, which outlasts `vector`.
    m.msg_iovlen <= 1024 && unsafe { vector.take(m.msg_iov as i64, m.msg_iovlen) }.is_ok()
}

/// Serves sendmsg(socket, message, flags).
pub unsafe fn send(a: &[i64; 6]) -> i64 {
    // SAFETY: any bytes are a msghdr; a bad address is caught.
    let Ok(message) = (unsafe { user::take(a[1]) }) else {
        return PASS;
    };
    // SAFETY: `message` was read from the program, which passed the addresses in it.
    match unsafe { outgoing(&message) } {
        // The kernel finds the bad address, or reports another error first.
        Err(Errno::FAULT) => PASS,
        Err(_) if !nodes::is_unix_socket(a[0]) || !is_whole(&message) => PASS,
        Err(e) => results::errno(e),
        Ok(None) => PASS,
        Ok(Some(c)) => {
            // SAFETY: the program's own call, with the message in which tickets replace
            // descriptors.
            let result = unsafe {
                raw(
                    libc::SYS_sendmsg,
                    [a[0], (&raw const c.header) as i64, a[2], 0, 0, 0],
                )
            };
            let _critical = Critical::enter();
            if result < 0 {
                take_back(&c.tickets);
            }
            drop(c);
            result
        }
    }
}

/// Serves sendmmsg(socket, messages, count, flags).
pub unsafe fn send_many(a: &[i64; 6]) -> i64 {
    let count = (a[2] as u32).min(1024) as usize;
    let list = a[1] as *const libc::mmsghdr;
    let plain = || {
        (0..count).all(|i| {
            // SAFETY: runs under the fault guard, which catches bad addresses; any bytes are a
            // mmsghdr.
            unsafe {
                let m = list.add(i).read_unaligned().msg_hdr;
                let name = m.msg_name.cast::<u16>();
                (name.is_null() || i32::from(name.read_unaligned()) != libc::AF_UNIX)
                    && !has_control(&m)
            }
        })
    };
    // SAFETY: `plain` holds no lock. If an address is bad, the kernel reports that, after the
    // messages before it.
    if unsafe { user::touch(plain) }.unwrap_or(count == 1) || !nodes::is_unix_socket(a[0]) {
        return PASS;
    }
    let mut sent = 0;
    for i in 0..count {
        let at = a[1] + (i * size_of::<libc::mmsghdr>()) as i64;
        // The message's header is the first field of a mmsghdr.
        let one = [a[0], at, a[3], 0, 0, 0];
        // SAFETY: `at` is the address of one of the program's messages; a bad address is caught.
        let mut result = unsafe { send(&one) };
        if result == PASS {
            // SAFETY: the program's own call, for one of its messages.
            result = unsafe { raw(libc::SYS_sendmsg, one) };
        }
        if result < 0 {
            return if sent == 0 { result } else { sent };
        }
        let len_at = at + std::mem::offset_of!(libc::mmsghdr, msg_len) as i64;
        // SAFETY: the program passed this message to be written; a bad address is caught.
        match unsafe { user::give(result as u32, len_at) } {
            Err(e) if sent == 0 => return results::errno(e),
            Err(_) => return sent,
            Ok(_) => sent += 1,
        }
    }
    sent
}

/// Serves recvmsg(socket, message, flags).
pub unsafe fn receive(a: &[i64; 6]) -> i64 {
    // SAFETY: the program passed this message to the call; a bad address is caught.
    if !unsafe { user::take(a[1]) }.is_ok_and(|m| has_control(&m)) {
        return PASS;
    }
    // SAFETY: the program makes this call; its arguments are passed on unchanged.
    let result = unsafe { raw(libc::SYS_recvmsg, *a) };
    if result >= 0 {
        // SAFETY: `a[1]` is the program's message, which the kernel has filled.
        unsafe { arrived(a[1], a[2] as i32) };
    }
    result
}

/// Serves recvmmsg(socket, messages, count, flags, timeout).
pub unsafe fn receive_many(a: &[i64; 6]) -> i64 {
    // SAFETY: the program makes this call; its arguments are passed on unchanged.
    let result = unsafe { raw(libc::SYS_recvmmsg, *a) };
    for i in 0..result {
        let at = a[1] + i * size_of::<libc::mmsghdr>() as i64;
        // SAFETY: `at` is one of the program's messages that the kernel has filled.
        unsafe { arrived(at, a[3] as i32) };
    }
    result
}

/// Turns the tickets that a message has brought into descriptors of the pool.
unsafe fn arrived(message: i64, flags: i32) {
    // SAFETY: the message is the program's, and the kernel has filled it; a bad address is caught.
    let control = unsafe { user::take(message).and_then(|m| control(&m)) }.unwrap_or_default();
    if control.is_empty() || !parts(&control).any(|p| p.is_rights) {
        return;
    }
    let _critical = Critical::enter();
    for i in rights(&control) {
        let fd = number(&control, i);
        if let Some(ticket) = read_ticket(fd) {
            let cloexec = flags & libc::MSG_CMSG_CLOEXEC != 0;
            redeem(fd, &ticket, cloexec, flags & libc::MSG_PEEK != 0);
        }
    }
}

fn read_ticket(fd: i32) -> Option<Ticket> {
    let mut link = [0u8; SHOWN.len()];
    let path = format!("/proc/self/fd/{fd}");
    let n = rustix::fs::readlinkat_raw(rustix::fs::CWD, path, &mut link[..]).ok()?;
    if link[..n] != *SHOWN {
        return None;
    }
    let mut bytes = [0u8; LEN];
    let file = reopen(fd, OFlags::RDONLY).ok()?;
    if rustix::io::pread(&file, &mut bytes, 0) != Ok(LEN) {
        return None;
    }
    // SAFETY: `bytes` is as long as a Ticket, and any bytes are a valid one.
    Some(unsafe { bytes.as_ptr().cast::<Ticket>().read_unaligned() })
}

/// Makes `fd` stand for the description that the ticket names.
fn redeem(fd: i32, t: &Ticket, cloexec: bool, peek: bool) {
    let Ok(fs) = pool::fs() else { return };
    let Ok(placeholder) = placeholder::descriptor(fs) else {
        return;
    };
    let cloexec = if cloexec { libc::O_CLOEXEC } else { 0 };
    // SAFETY: replaces the ticket's descriptor, which the program hasn't seen yet.
    let there = unsafe {
        raw(
            libc::SYS_dup3,
            [
                placeholder.as_raw_fd().into(),
                fd.into(),
                cloexec.into(),
                0,
                0,
                0,
            ],
        )
    };
    if there < 0 {
        return;
    }
    let _changing = fs.descriptors().changing().ok();
    let Ok(open) = open_of(fs, t, peek) else {
        messages::complain("a descriptor that was received can't be used: its file is gone");
        return;
    };
    fs.buffers().look_again_open(open);
    if fd_table::attach(fs, fd, open).is_err() {
        let _ = fs.description(open).release();
    }
}

/// Returns a reference to the description that a ticket names.
fn open_of(fs: &Fs, t: &Ticket, peek: bool) -> Result<u32, Errno> {
    if t.pool != pool(fs) {
        return Err(Errno::BADF);
    }
    if let Some(open) = fs.descriptors().unpark(&t.parked, !peek) {
        return Ok(open);
    }
    let e = Entry {
        id: ObjectId(t.id),
        kind: t.kind,
    };
    let making = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC;
    let flags = t.flags as i32 & !making;
    let open = fs.open_object(e, flags, true, ObjectId(t.parent), b"")?;
    fs.description(open).set_offset(t.offset);
    Ok(open)
}

/// Returns the process to which a pidfd refers.
fn process_of(pidfd: i64) -> Option<u32> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{pidfd}")).ok()?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    pid.trim().parse().ok()
}

/// Serves pidfd_getfd. If the descriptor is a placeholder, the new descriptor stands for the same
/// file as in the other process. A placeholder of another pool is refused with EOPNOTSUPP.
pub unsafe fn from_process(a: &[i64; 6]) -> i64 {
    // SAFETY: the program makes this call; its arguments are passed on unchanged.
    let fd = unsafe { raw(libc::SYS_pidfd_getfd, *a) };
    if fd < 0 || !placeholder::leads_to_one(format!("/proc/self/fd/{fd}").as_bytes()) {
        return fd;
    }
    if let Ok(fs) = pool::fs()
        && let Some(pid) = process_of(a[0])
        && let Some(open) = fs.descriptors().taken_from(pid, a[1] as i32)
    {
        return results::value(
            fd_table::attach(fs, fd as i32, open)
                .map(|()| fd)
                .inspect_err(|_| {
                    let _ = fs.description(open).release();
                }),
        );
    }
    // SAFETY: close takes no pointer; nothing else uses the descriptor made above.
    unsafe { raw(libc::SYS_close, [fd, 0, 0, 0, 0, 0]) };
    results::errno(Errno::OPNOTSUPP)
}
