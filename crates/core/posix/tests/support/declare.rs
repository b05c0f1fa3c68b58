//! Helpers of tests with controls: declare and look up controls, and write and read files in one
//! call.

use super::nodes::Nodes;
use super::*;
use forebay_posix::{Errno, Fail, Fs, ObjectId};

/// Ids of two processes that don't exist, higher than any thread's id.
pub const ONE: u32 = (1 << 22) + 17;
pub const TWO: u32 = (1 << 22) + 18;

pub fn declare(fs: &Fs, path: &str, what: &str) {
    let id = ObjectId(fs.stat(path.as_bytes(), true).unwrap().ino);
    fs.set_controls(id, what.parse().unwrap()).unwrap();
}

pub fn is_laminated(fs: &Fs, path: &str) -> bool {
    let id = ObjectId(fs.stat(path.as_bytes(), true).unwrap().ino);
    fs.controls_of(id).unwrap().1
}

pub fn put(fs: &Fs, path: &str, bytes: &[u8]) -> forebay_posix::Result<()> {
    let f = fs.open(path.as_bytes(), O_CREAT | O_WRONLY, 0o600)?;
    assert_eq!(f.write_at(bytes, 0)?, bytes.len());
    f.close()
}

pub fn get(fs: &Fs, path: &str) -> Vec<u8> {
    read_all(&fs.open(path.as_bytes(), O_RDONLY, 0).unwrap())
}

/// Opens a file for writing and closes it.
pub fn write_again(fs: &Fs, path: &str) {
    let f = fs.open(path.as_bytes(), O_WRONLY, 0).unwrap();
    f.close().unwrap();
}

/// Calls `f` with the view of one node, and with the views of three.
pub fn each(name: &str, f: impl Fn(&[&Fs])) {
    let one = TestPool::new(name);
    f(&[&one]);
    one.assert_whole();
    let nodes = Nodes::new(&format!("{name}-of"), 3, &["memory:32M"], 60);
    f(&nodes.views.iter().collect::<Vec<_>>());
    nodes.assert_whole();
}

/// Opens a file as process `pid` would. `pid` is only a number: no such process exists.
pub fn open_as(fs: &Fs, pid: u32, path: &str, flags: i32) -> Result<u32, Errno> {
    let fs = fs.for_process(pid);
    let opened = fs.open_at(ObjectId::ROOT, path.as_bytes(), flags, 0o600);
    opened.map_err(|e| match e {
        Fail::Errno(e) => e,
        Fail::Outside(_) | Fail::Origin(_) => Errno::XDEV,
    })
}

pub fn close(fs: &Fs, open: u32) {
    fs.store().objects().open_release(open).unwrap();
}
