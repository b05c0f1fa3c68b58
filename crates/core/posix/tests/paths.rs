//! Random paths through random trees of directories, files and symbolic links. The pool resolves
//! these paths, and the kernel resolves them on the same tree in shared memory. Both must find the
//! same object or return the same error.

mod support;

use forebay_fuzz::Random;
use forebay_posix::{Errno, Fail, Follow, ObjectId, Rules};
use rustix::fs::{self as kernel, Mode, OFlags, ResolveFlags};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use support::*;

/// The same tree twice: in the pool, whose prefix is /fb, and in `top`/fb.
struct TwoTrees {
    pool: TestPool,
    top: PathBuf,
    /// Directories, relative to the root; the root is the empty path.
    dirs: Vec<Vec<u8>>,
    /// Names that exist in some directory.
    names: Vec<Vec<u8>>,
    /// Whether only resolving with a root directory (RESOLVE_IN_ROOT) is compared: then absolute
    /// links have the same text in both trees. In other runs, absolute links lead to corresponding
    /// paths, so their texts differ.
    rooted: bool,
    /// The pool's objects by the kernel's inode numbers of the corresponding objects.
    same: HashMap<u64, u64>,
}

const SHORT: [&[u8]; 8] = [b"a", b"b", b"c", b"fb", b"...", b" ", b"\xff\xfe", b".a"];

impl TwoTrees {
    fn new(name: &str, round: u64, rooted: bool) -> TwoTrees {
        let top = PathBuf::from(format!(
            "/dev/shm/forebay-paths-{}-{name}",
            std::process::id()
        ));
        let _ = std::fs::remove_dir_all(&top);
        std::fs::create_dir_all(top.join("fb")).unwrap();
        let mut trees = TwoTrees {
            pool: TestPool::new(&format!("paths-{name}-{round}")),
            top,
            dirs: vec![Vec::new()],
            names: Vec::new(),
            rooted,
            same: HashMap::new(),
        };
        trees.note(b"");
        trees
    }

    fn there(&self, path: &[u8]) -> PathBuf {
        self.top.join("fb").join(OsStr::from_bytes(path))
    }

    fn here(path: &[u8]) -> Vec<u8> {
        [b"/", path].concat()
    }

    fn note(&mut self, path: &[u8]) {
        use std::os::unix::fs::MetadataExt;
        let ino = self.there(path).symlink_metadata().unwrap().ino();
        let id = self.pool.stat(&TwoTrees::here(path), false).unwrap().ino;
        self.same.insert(ino, id);
    }

    /// A random path of a few components that may lead anywhere.
    fn path(&self, r: &mut Random) -> Vec<u8> {
        let mut path = Vec::new();
        if r.once_in(8) {
            path.extend_from_slice(r.one_of::<&[u8]>(&[b"/fb", b"/fb/", b"/", b"//", b"/fbx/"]));
        }
        for _ in 0..r.below(7) {
            match r.below(20) {
                0..=2 => path.extend_from_slice(b".."),
                3 => path.push(b'.'),
                4 => path.extend_from_slice(&vec![b'x'; 253 + r.below(5)]),
                5 => path.extend_from_slice(&b"./".repeat(r.below(2100))),
                6 if !self.names.is_empty() => {
                    let name = r.one_of(&self.names).clone();
                    path.extend_from_slice(&[&name[..], b"/../"].concat().repeat(r.below(60)));
                }
                7 => path.extend_from_slice(r.one_of::<Vec<u8>>(&self.dirs)),
                8 => path.extend(r.bytes(12).into_iter().filter(|&b| b != 0)),
                9..=14 if !self.names.is_empty() => {
                    path.extend_from_slice(r.one_of::<Vec<u8>>(&self.names))
                }
                _ => path.extend_from_slice(r.one_of::<&[u8]>(&SHORT)),
            }
            match r.below(12) {
                0 => {}
                1 => path.extend_from_slice(b"//"),
                _ => path.push(b'/'),
            }
        }
        if r.once_in(2) {
            while path.len() > 1 && path.ends_with(b"/") {
                path.pop();
            }
        }
        path
    }

    /// Makes a directory, a file or a link, or renames an object, in both trees.
    fn grow(&mut self, r: &mut Random) {
        let dir = r.one_of(&self.dirs).clone();
        let name = match r.below(8) {
            0 => vec![b'n'; 255],
            1 => r
                .bytes(8)
                .into_iter()
                .filter(|b| !b"\0/".contains(b))
                .collect(),
            _ => r.one_of(&SHORT).to_vec(),
        };
        let path = if dir.is_empty() {
            name.clone()
        } else {
            [&dir[..], b"/", &name].concat()
        };
        let taken = self.there(&path).symlink_metadata().is_ok();
        if taken || matches!(&name[..], b"" | b"." | b"..") || path.len() > 2000 {
            return;
        }
        let here = TwoTrees::here(&path);
        match r.below(6) {
            0 | 1 => {
                std::fs::create_dir(self.there(&path)).unwrap();
                self.pool.mkdir(&here, 0o755).unwrap();
                self.dirs.push(path.clone());
            }
            2 => {
                std::fs::write(self.there(&path), b"").unwrap();
                self.pool.mknod(&here, libc::S_IFREG | 0o644, 0).unwrap();
            }
            3 if self.dirs.len() > 1 => {
                // Directories that are renamed make earlier resolutions invalid.
                let from = r.one_of(&self.dirs[1..]).clone();
                if path.starts_with(&from) || from.contains(&b'/') {
                    return;
                }
                std::fs::rename(self.there(&from), self.there(&path)).unwrap();
                self.pool.rename(&TwoTrees::here(&from), &here).unwrap();
                for d in &mut self.dirs {
                    if *d == from || d.starts_with(&[&from[..], b"/"].concat()) {
                        d.splice(..from.len(), path.iter().copied());
                    }
                }
            }
            _ => {
                let mut target = self.path(r);
                target.truncate(4000);
                if target.is_empty() {
                    target.push(b'.');
                }
                let absolute = target.starts_with(b"/") && !self.rooted;
                let top = self.top.as_os_str().as_bytes();
                let there = [if absolute { top } else { b"" }, &target].concat();
                if there.len() > 4095 {
                    return;
                }
                std::os::unix::fs::symlink(OsStr::from_bytes(&there), self.there(&path)).unwrap();
                self.pool.symlink(&target, &here).unwrap();
            }
        }
        self.names.push(name);
        self.note(&path);
    }

    fn open(&self, dir: &[u8]) -> OwnedFd {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        kernel::open(self.there(dir), flags, Mode::empty()).unwrap()
    }

    fn the_kernels(&self, fd: rustix::io::Result<OwnedFd>) -> Result<u64, Errno> {
        let ino = kernel::fstat(&fd?).unwrap().st_ino;
        // An object outside of both trees is compared by the kernel's inode number.
        Ok(self.same.get(&ino).copied().unwrap_or(ino))
    }

    /// Compares the resolution of one path. Returns whether it leads to an object.
    fn compare(&self, r: &mut Random) -> bool {
        let base = r.one_of(&self.dirs).clone();
        let base_id = ObjectId(self.pool.stat(&TwoTrees::here(&base), true).unwrap().ino);
        let path = self.path(r);
        if path.starts_with(b"/") && path.len() > 4000 {
            // The path for the kernel has one more byte, and would be too long.
            return false;
        }
        let follow = *r.one_of(&[Follow::Yes, Follow::No]);
        let mut flags = OFlags::PATH | OFlags::CLOEXEC;
        if follow == Follow::No {
            flags |= OFlags::NOFOLLOW;
        }
        let rules = (self.rooted || r.once_in(4)).then(|| Rules {
            in_root: self.rooted,
            beneath: !self.rooted && r.once_in(2),
            no_links: r.once_in(4),
            inside_only: false,
        });
        let found = match rules {
            None => self
                .pool
                .resolver()
                .at(base_id, &path, follow, |p| p.existing()),
            Some(rules) => self
                .pool
                .resolver()
                .at_with(base_id, &path, follow, rules, |p| p.existing()),
        };
        let id = |e: forebay_posix::Entry| e.id.0;
        let at = |dir: &OwnedFd, path: &[u8]| kernel::openat(dir, path, flags, Mode::empty());
        let (ours, theirs) = match rules {
            None => {
                let whole = if path.starts_with(b"/") {
                    // A path that is absolute inside the pool is resolved from the prefix on.
                    at(&self.open(b""), &[b".", &path[..]].concat())
                } else {
                    at(&self.open(&base), &path)
                };
                let ours = match found {
                    // Links have made the path too long to be passed to the kernel in one call.
                    Err(Fail::Outside(rest)) if rest.len() > 4000 => return false,
                    Err(Fail::Outside(rest)) => {
                        let top = kernel::open(&self.top, OFlags::PATH, Mode::empty()).unwrap();
                        self.the_kernels(at(&top, &[b".", &rest[..]].concat()))
                    }
                    Err(Fail::Origin(_)) => unreachable!("the pool has no origin"),
                    Err(Fail::Errno(e)) => Err(e),
                    Ok(e) => Ok(id(e)),
                };
                (ours, self.the_kernels(whole))
            }
            Some(rules) => {
                let mut resolve = ResolveFlags::empty();
                resolve.set(ResolveFlags::IN_ROOT, rules.in_root);
                resolve.set(ResolveFlags::BENEATH, rules.beneath);
                resolve.set(ResolveFlags::NO_SYMLINKS, rules.no_links);
                let path_there = if path.starts_with(b"/") && !rules.in_root && !rules.beneath {
                    return false;
                } else {
                    &path
                };
                let there = self.open(&base);
                let ask =
                    || kernel::openat2(&there, &path_there[..], flags, Mode::empty(), resolve);
                // openat2 returns EAGAIN if any process has renamed anything meanwhile.
                let theirs = std::iter::repeat_with(ask).find(|r| !matches!(r, Err(Errno::AGAIN)));
                let theirs = theirs.expect("it doesn't end");
                let ours = match found {
                    // openat2 continues outside of the tree with the remaining rules, which isn't
                    // compared.
                    Err(Fail::Outside(_)) => return false,
                    Err(Fail::Origin(_)) => unreachable!("the pool has no origin"),
                    Err(Fail::Errno(e)) => Err(e),
                    Ok(e) => Ok(id(e)),
                };
                (ours, self.the_kernels(theirs))
            }
        };
        if ours == Err(Errno::XDEV) && theirs == Err(Errno::LOOP) {
            // After a forbidden step, Linux resolves the path again, and continues to count links.
            return false;
        }
        assert_eq!(
            ours,
            theirs,
            "ours and the kernel's, for {:.300?} ({} bytes) from {:?}, {follow:?}, {rules:?}; the tree is in {}",
            String::from_utf8_lossy(&path),
            path.len(),
            String::from_utf8_lossy(&base),
            self.top.display()
        );
        ours.is_ok()
    }
}

impl Drop for TwoTrees {
    fn drop(&mut self) {
        if std::env::var_os("FOREBAY_FUZZ_KEEP").is_none() {
            let _ = std::fs::remove_dir_all(&self.top);
        }
    }
}

#[test]
fn paths_lead_where_the_kernel_says() {
    let (mut round, mut compared, mut there) = (0, 0u64, 0u64);
    forebay_fuzz::run("paths", |r| {
        round += 1;
        let mut trees = TwoTrees::new("kernel", round, r.once_in(3));
        for _ in 0..60 {
            for _ in 0..3 {
                trees.grow(r);
            }
            for _ in 0..40 {
                compared += 1;
                there += u64::from(trees.compare(r));
            }
        }
    });
    println!("paths: {compared} compared, {there} of them lead to something");
    assert!(there * 20 > compared, "most paths lead nowhere");
}
