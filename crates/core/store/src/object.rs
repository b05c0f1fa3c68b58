//! Arguments of operations on names and objects: names, new objects, attributes to change.
//!
//! Plain values: nothing here looks at a store. The values that nodes send each other have their
//! [`Wire`] form here.

use crate::clock::TICK;
use crate::codec::{Wire, fields};
use crate::process;
use crate::{Distribution, Inode, ObjectId, OriginMark, OriginState};

/// A name: its directory, and the last component.
pub type Named<'a> = (ObjectId, &'a [u8]);

/// A new object: its kind, owner, attributes and controls.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewObject<'a> {
    /// Type and permission bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    /// Target of a symbolic link.
    pub target: &'a [u8],
    /// How a directory's content is distributed, if not as its parent's.
    pub distribution: Option<Distribution>,
    /// The object's declared controls: [`crate::Inode::controls`].
    pub controls: u64,
    /// The process that makes the object, if it is ephemeral ([`crate::declared::is_ephemeral`]).
    pub creator: Option<Creator>,
    /// The object's placeholder values, if it stands for an object of the pool's origin.
    pub stub: Option<Stub>,
}

impl NewObject<'_> {
    /// The inode of the object, with one name, made at the time `t` (nanoseconds since 1970).
    pub fn inode(&self, t: i64) -> Inode {
        let mut inode = Inode {
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            controls: self.controls,
            ..Inode::made_at(t)
        };
        inode.nlink = if inode.is_dir() { 2 } else { 1 };
        if let Some(stub) = &self.stub {
            stub.apply(&mut inode);
        }
        inode
    }
}

/// The attributes that a new placeholder takes from its object in the pool's origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stub {
    /// Size of a file. Bytes.
    pub size: u64,
    /// Nanoseconds since 1970.
    pub mtime: i64,
    pub mark: OriginMark,
}

fields! { Stub { size, mtime, mark } }
fields! { OriginMark { state, print, synced } }

impl Stub {
    /// Sets these attributes in the inode of a new object.
    pub fn apply(&self, inode: &mut Inode) {
        if inode.is_file() {
            inode.size = self.size;
        }
        inode.mtime = self.mtime;
        inode.origin = self.mark;
        if self.mark.synced == 0 && !inode.is_dir() {
            // With an earlier change time, a change within the present tick of the clock gets
            // another one.
            inode.ctime -= TICK;
            inode.origin.synced = inode.ctime;
        }
    }
}

impl Wire for OriginState {
    type Owned = OriginState;

    fn put(&self, to: &mut Vec<u8>) {
        to.push(*self as u8);
    }
    fn take(from: &mut &[u8]) -> Option<OriginState> {
        OriginState::from_number(u8::take(from)?.into())
    }
}

/// How rename treats an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    Replace,
    NoReplace,
    Exchange,
}

/// Attributes to change; None leaves an attribute as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub mtime: Option<i64>,
    pub atime: Option<i64>,
    /// The controls that hold from now on: [`crate::Inode::controls`].
    pub controls: Option<u64>,
    /// The object's relation to the pool's origin. Setting it alone doesn't count as a change of
    /// the object: the change time stays.
    pub origin: Option<OriginMark>,
    /// The change time, instead of now. Nanoseconds since 1970.
    pub ctime: Option<i64>,
}

impl SetAttr {
    /// Whether this change, made to a directory, affects what all nodes cache of directories.
    pub fn of_names(&self) -> bool {
        let rights = self.mode.is_some() || self.uid.is_some() || self.gid.is_some();
        rights || self.controls.is_some() || self.origin.is_some()
    }

    /// Whether this changes more than `origin` and `ctime`.
    pub(crate) fn changes_object(&self) -> bool {
        let times = self.mtime.is_some() || self.atime.is_some();
        times
            || self.mode.is_some()
            || self.uid.is_some()
            || self.gid.is_some()
            || self.controls.is_some()
    }
}

fields! {
    SetAttr { mode, uid, gid, mtime, atime, controls, origin, ctime }
}

impl Wire for RenameMode {
    type Owned = RenameMode;

    fn put(&self, to: &mut Vec<u8>) {
        to.push(match self {
            RenameMode::Replace => 0,
            RenameMode::NoReplace => 1,
            RenameMode::Exchange => 2,
        });
    }
    fn take(from: &mut &[u8]) -> Option<RenameMode> {
        match u8::take(from)? {
            0 => Some(RenameMode::Replace),
            1 => Some(RenameMode::NoReplace),
            2 => Some(RenameMode::Exchange),
            _ => None,
        }
    }
}

/// The identity of a process that makes ephemeral files. The identity is unique among all processes
/// of a pool, ended ones included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Creator {
    /// The creator's node; 0 in a pool of one.
    pub node: u32,
    /// Identifies the boot of the creator's node; 0: not known.
    boot: u64,
    /// Process id and start time, as in an owner word.
    process: u64,
}

fields! { Creator { node, boot, process } }

impl Creator {
    /// The identity of a process of this boot, on `node`; `process` is its owner word.
    pub(crate) fn here(node: u32, process: u64) -> Creator {
        Creator {
            node,
            boot: process::boot(),
            process,
        }
    }

    /// Whether the process still runs. Must be called on its node.
    pub fn runs(&self) -> bool {
        let boot = process::boot();
        (self.boot == boot || self.boot == 0 || boot == 0) && process::runs(self.process)
    }
}
