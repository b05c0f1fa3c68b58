//! Operations that change a pool, one of each kind, for tests that end an operation in the middle.
//! Also determines the allowed states of a directory before, between and after an operation's
//! steps.

use super::*;
use forebay_posix::{Fail, Follow, ObjectId, RenameMode, Result};
use std::collections::BTreeMap;

/// The objects of an operation, in a directory made by [`furnish`].
pub struct Place<'a> {
    pub fs: &'a Fs,
    pub dir: String,
    /// Open file descriptions, for steps that open and later close them.
    opens: Vec<u32>,
}

/// One call, or a few that belong together.
pub type Step = fn(&mut Place<'_>) -> Result<()>;

pub struct Operation {
    pub name: &'static str,
    /// A call that prepares the operation, and that the tests never end in the middle.
    pub before: Step,
    pub steps: Vec<Step>,
    /// Whether bytes written in place may be partly old, partly new.
    pub torn: bool,
}

fn nothing(_: &mut Place<'_>) -> Result<()> {
    Ok(())
}

fn operation(name: &'static str, steps: &[Step]) -> Operation {
    Operation {
        name,
        before: nothing,
        steps: steps.to_vec(),
        torn: false,
    }
}

fn with_many_attributes(name: &'static str, before: Step, step: Step) -> Operation {
    Operation {
        before,
        ..operation(name, &[step])
    }
}

/// Gives a file or directory more attributes than one transaction can move.
fn tag(p: &Place<'_>, name: &str) -> Result<()> {
    (0..11).try_for_each(|n| {
        let key = format!("user.many{n}");
        p.fs.set_xattr(&p.path(name), key.as_bytes(), b"v", true)
    })
}

impl<'a> Place<'a> {
    pub fn new(fs: &'a Fs, dir: &str) -> Place<'a> {
        Place {
            fs,
            dir: dir.into(),
            opens: Vec::new(),
        }
    }

    fn path(&self, name: &str) -> Vec<u8> {
        format!("{}/{name}", self.dir).into_bytes()
    }

    fn open(&mut self, name: &str, flags: i32) -> Result<()> {
        let path = self.path(name);
        let open = plain(self.fs.open_at(ObjectId::ROOT, &path, flags, 0o644))?;
        self.opens.push(open);
        Ok(())
    }

    fn write(&mut self, bytes: &[u8], at: u64) -> Result<()> {
        let open = *self.opens.last().expect("a step before opened it");
        let mut done = 0;
        while done < bytes.len() {
            let rest = &bytes[done..];
            done += self.fs.write(open, Some(at + done as u64), rest.into())?;
        }
        Ok(())
    }

    /// Copies from the file opened last but one to the file opened last.
    fn copy(&mut self, at: u64, to: u64, len: u64) -> Result<()> {
        let [.., from, into] = self.opens[..] else {
            panic!("steps before opened two");
        };
        let mut done = 0;
        while done < len {
            let (from, into) = ((from, Some(at + done)), (into, Some(to + done)));
            let n = self.fs.copy_range(from, into, len - done)?;
            assert!(n > 0, "the source has so many");
            done += n;
        }
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        let open = self.opens.pop().expect("a step before opened it");
        self.fs.store().objects().open_release(open)
    }

    fn rename(&self, from: &str, to: &str, mode: RenameMode) -> Result<()> {
        let (from, to) = (self.path(from), self.path(to));
        plain(
            self.fs
                .rename_at((ObjectId::ROOT, &from), (ObjectId::ROOT, &to), mode),
        )
    }

    /// Closes the files that a failed operation has left open.
    pub fn give_up(&mut self) {
        for open in self.opens.drain(..) {
            let _ = self.fs.store().objects().open_release(open);
        }
    }
}

fn plain<T>(result: std::result::Result<T, Fail>) -> Result<T> {
    result.map_err(|e| match e {
        Fail::Errno(e) => e,
        outside => panic!("{outside:?}"),
    })
}

/// Fills the new directory `dir`.
pub fn furnish(fs: &Fs, dir: &str) {
    let path = |name: &str| format!("{dir}/{name}").into_bytes();
    fs.mkdir(dir.as_bytes(), 0o755).unwrap();
    for d in ["empty", "full", "full/deep"] {
        fs.mkdir(&path(d), 0o755).unwrap();
    }
    for (name, len) in [
        ("tiny", 10),
        ("page", 3000),
        ("big", 1_300_000),
        ("full/x", 20_000),
        ("linked", 700),
        ("sized", 9000),
    ] {
        let f = fs.open(&path(name), O_CREAT | O_WRONLY, 0o600).unwrap();
        write_all(&f, &pattern(len as u64, len), 0);
        f.close().unwrap();
    }
    fs.link(&path("linked"), &path("full/linked")).unwrap();
    fs.symlink(b"page", &path("symlink")).unwrap();
    for name in ["page", "linked", "full"] {
        fs.set_xattr(&path(name), b"user.a", b"one", true).unwrap();
    }
}

/// All operations. The operations use the names that [`furnish`] makes.
pub fn operations() -> Vec<Operation> {
    let mut all = vec![
        operation(
            "create",
            &[|p| p.open("new", O_CREAT | O_RDWR), |p| p.close()],
        ),
        operation(
            "create, write small, close",
            &[
                |p| p.open("new", O_CREAT | O_EXCL | O_WRONLY),
                |p| p.write(&pattern(1, 500), 0),
                |p| p.close(),
            ],
        ),
        operation(
            "create, write a page, close",
            &[
                |p| p.open("new", O_CREAT | O_EXCL | O_WRONLY),
                |p| p.write(&pattern(2, 3901), 0),
                |p| p.close(),
            ],
        ),
        operation(
            "create, write large, close",
            &[
                |p| p.open("new", O_CREAT | O_EXCL | O_WRONLY),
                |p| p.write(&pattern(3, 150_000), 0),
                |p| p.write(&pattern(4, 40_000), 1_040_000),
                |p| p.close(),
            ],
        ),
        operation(
            "append to a small file",
            &[
                |p| p.open("tiny", O_WRONLY | O_APPEND),
                |p| p.write(&pattern(5, 2000), 0),
                |p| p.close(),
            ],
        ),
        operation(
            "open with O_TRUNC, write, close",
            &[
                |p| p.open("page", O_WRONLY | O_TRUNC),
                |p| p.write(&pattern(6, 100), 0),
                |p| p.close(),
            ],
        ),
        operation(
            "truncate to nothing",
            &[|p| p.open("big", O_RDWR), |p| shorten(p, 0), |p| p.close()],
        ),
        operation(
            "truncate",
            &[
                |p| p.open("big", O_RDWR),
                |p| shorten(p, 5000),
                |p| p.close(),
            ],
        ),
        operation(
            "truncate, longer",
            &[
                |p| p.open("tiny", O_RDWR),
                |p| shorten(p, 50_000),
                |p| p.close(),
            ],
        ),
        operation("unlink a small file", &[|p| p.fs.unlink(&p.path("tiny"))]),
        operation("unlink a file", &[|p| p.fs.unlink(&p.path("page"))]),
        operation("unlink a large file", &[|p| p.fs.unlink(&p.path("big"))]),
        operation(
            "unlink one name of two",
            &[|p| p.fs.unlink(&p.path("linked"))],
        ),
        operation(
            "unlink a symbolic link",
            &[|p| p.fs.unlink(&p.path("symlink"))],
        ),
        operation(
            "rename in a directory",
            &[|p| p.rename("page", "page2", RenameMode::Replace)],
        ),
        operation(
            "rename into another",
            &[|p| p.rename("page", "empty/page", RenameMode::Replace)],
        ),
        operation(
            "rename over a file",
            &[|p| p.rename("page", "big", RenameMode::Replace)],
        ),
        operation(
            "rename a file with two names",
            &[|p| p.rename("linked", "other", RenameMode::Replace)],
        ),
        operation(
            "rename over one name of two",
            &[|p| p.rename("tiny", "linked", RenameMode::Replace)],
        ),
        operation(
            "exchange",
            &[|p| p.rename("tiny", "full/x", RenameMode::Exchange)],
        ),
        operation(
            "exchange a file and a directory",
            &[|p| p.rename("tiny", "full", RenameMode::Exchange)],
        ),
        operation(
            "rename a directory",
            &[|p| p.rename("full", "full2", RenameMode::Replace)],
        ),
        operation(
            "rename a directory into another",
            &[|p| p.rename("full", "empty/full", RenameMode::Replace)],
        ),
        operation(
            "rename over an empty directory",
            &[|p| p.rename("full", "empty", RenameMode::Replace)],
        ),
        operation(
            "link",
            &[|p| p.fs.link(&p.path("page"), &p.path("empty/page"))],
        ),
        operation(
            "link a third name",
            &[|p| p.fs.link(&p.path("linked"), &p.path("third"))],
        ),
        operation(
            "unlink the first of two names, then the second",
            &[
                |p| p.fs.unlink(&p.path("linked")),
                |p| p.fs.unlink(&p.path("full/linked")),
            ],
        ),
        operation(
            "symlink",
            &[|p| p.fs.symlink(b"somewhere", &p.path("link"))],
        ),
        operation("mkdir", &[|p| p.fs.mkdir(&p.path("d"), 0o700)]),
        operation("rmdir", &[|p| p.fs.rmdir(&p.path("empty"))]),
        operation("chmod a file", &[|p| p.fs.chmod(&p.path("page"), 0o400)]),
        operation(
            "chmod a directory",
            &[|p| p.fs.chmod(&p.path("full"), 0o700)],
        ),
        with_many_attributes(
            "rename with many attributes",
            |p| tag(p, "page"),
            |p| p.rename("page", "full/page", RenameMode::Replace),
        ),
        with_many_attributes(
            "rename over a file with many attributes",
            |p| tag(p, "page"),
            |p| p.rename("tiny", "page", RenameMode::Replace),
        ),
        with_many_attributes(
            "unlink one name of two with many attributes",
            |p| tag(p, "linked"),
            |p| p.fs.unlink(&p.path("linked")),
        ),
        with_many_attributes(
            "unlink with many attributes",
            |p| tag(p, "page"),
            |p| p.fs.unlink(&p.path("page")),
        ),
        with_many_attributes(
            "rename a directory with many attributes",
            |p| tag(p, "full"),
            |p| p.rename("full", "empty", RenameMode::Replace),
        ),
        with_many_attributes(
            "rmdir with many attributes",
            |p| tag(p, "empty"),
            |p| p.fs.rmdir(&p.path("empty")),
        ),
        operation(
            "set an attribute",
            &[|p| p.fs.set_xattr(&p.path("tiny"), b"user.b", &[7; 3000], true)],
        ),
        operation(
            "change an attribute",
            &[|p| p.fs.set_xattr(&p.path("page"), b"user.a", b"two", true)],
        ),
        operation(
            "remove an attribute",
            &[|p| p.fs.remove_xattr(&p.path("page"), b"user.a", true)],
        ),
        operation(
            "set times",
            &[|p| p.fs.set_times(&p.path("page"), Some(1), Some(2), true)],
        ),
        operation(
            "fsync",
            &[
                |p| p.open("new", O_CREAT | O_WRONLY),
                |p| p.write(&pattern(7, 5000), 0),
                |p| p.fs.sync_open(*p.opens.last().unwrap()),
                |p| p.close(),
            ],
        ),
        operation(
            "under descriptors",
            &[
                |p| p.open("new", O_CREAT | O_RDWR),
                |p| {
                    // As in the preloaded library: within a section, the reference to the
                    // description is moved from the caller to the table and back.
                    let _section = p.fs.store().section()?;
                    let (store, open) = (p.fs.store(), p.opens.pop().unwrap());
                    store.objects().fd_set(700, Some(open))?;
                    store.objects().open_retain(open)?;
                    store.objects().fd_set(701, Some(open))?;
                    for fd in [700, 701] {
                        if let Some(open) = store.objects().fd_set(fd, None)? {
                            store.objects().open_release(open)?;
                        }
                    }
                    Ok(())
                },
            ],
        ),
        operation(
            "unnamed, then linked",
            &[
                |p| {
                    let dir = p.dir.clone();
                    let open = plain(p.fs.open_at(
                        ObjectId::ROOT,
                        dir.as_bytes(),
                        libc::O_TMPFILE | O_RDWR,
                        0o600,
                    ))?;
                    p.opens.push(open);
                    p.write(&pattern(8, 6000), 0)
                },
                |p| {
                    let store = p.fs.store();
                    let id = store
                        .content()
                        .live_id(p.fs.live_of(*p.opens.last().unwrap())?);
                    let path = p.path("named");
                    plain(
                        p.fs.resolver()
                            .at(ObjectId::ROOT, &path, Follow::No, |place| {
                                p.fs.make_link(id, place)
                            }),
                    )
                },
                |p| p.close(),
            ],
        ),
        operation(
            "mapping",
            &[
                |p| p.open("sized", O_RDWR),
                |p| {
                    let live = p.fs.live_of(*p.opens.last().unwrap())?;
                    p.fs.cluster()
                        .mappings()
                        .map(live, 0, 12_288, usize::MAX)
                        .map(|_| ())
                },
                |p| p.close(),
            ],
        ),
        operation(
            "reserving",
            &[
                |p| p.open("tiny", O_RDWR),
                |p| {
                    let live = p.fs.live_of(*p.opens.last().unwrap())?;
                    p.fs.cluster()
                        .data()
                        .reserve_range(live, 0, 1_500_000, false)
                },
                |p| p.close(),
            ],
        ),
    ];
    let mut close = operation("last close of an unlinked file", &[|p| p.close()]);
    close.before = |p| {
        p.open("big", O_RDWR)?;
        p.write(b"more", 1_300_000)?;
        p.fs.unlink(&p.path("big"))
    };
    all.push(close);
    let mut unlink = operation(
        "unlink an open file, close it",
        &[|p| p.fs.unlink(&p.path("page")), |p| p.close()],
    );
    unlink.before = |p| p.open("page", O_RDWR);
    all.push(unlink);
    let mut replace = operation(
        "rename over an open file, close it",
        &[
            |p| p.rename("tiny", "sized", RenameMode::Replace),
            |p| p.close(),
        ],
    );
    replace.before = |p| p.open("sized", O_RDWR);
    all.push(replace);
    let mut over = operation(
        "write in place",
        &[
            |p| p.open("sized", O_RDWR),
            |p| p.write(&pattern(9, 3000), 2500),
            |p| p.close(),
        ],
    );
    over.torn = true;
    all.push(over);
    let mut across = operation(
        "write across the end",
        &[
            |p| p.open("page", O_RDWR),
            |p| p.write(&pattern(10, 9000), 1000),
            |p| p.close(),
        ],
    );
    across.torn = true;
    all.push(across);
    all.push(operation(
        "copy behind the end",
        &[
            |p| p.open("big", O_RDONLY),
            |p| p.open("tiny", O_RDWR),
            |p| p.copy(1_000_000, 10, 100_000),
            |p| p.close(),
            |p| p.close(),
        ],
    ));
    let mut copy = operation(
        "copy in place",
        &[
            |p| p.open("tiny", O_RDONLY),
            |p| p.open("sized", O_RDWR),
            |p| p.copy(2, 5000, 8),
            |p| p.close(),
            |p| p.close(),
        ],
    );
    copy.torn = true;
    all.push(copy);
    let mut inside = operation(
        "copy inside a file",
        &[
            |p| p.open("sized", O_RDONLY),
            |p| p.open("sized", O_RDWR),
            |p| p.copy(0, 7000, 6000),
            |p| p.close(),
            |p| p.close(),
        ],
    );
    inside.torn = true;
    all.push(inside);
    let mut punch = operation(
        "punch",
        &[
            |p| p.open("sized", O_RDWR),
            |p| {
                let live = p.fs.live_of(*p.opens.last().unwrap())?;
                p.fs.cluster().data().punch(live, 100, 8000, false)
            },
            |p| p.close(),
        ],
    );
    punch.torn = true;
    all.push(punch);
    all
}

fn shorten(p: &mut Place<'_>, len: u64) -> Result<()> {
    p.fs.truncate_open(*p.opens.last().unwrap(), len)
}

/// A file, directory or link; its times aren't compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    mode: u32,
    nlink: u32,
    pub content: Vec<u8>,
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// The state of everything below a directory, by path.
pub type State = BTreeMap<String, Seen>;

/// Reads everything below `dir`.
pub fn look(fs: &Fs, dir: &str) -> State {
    let mut state = State::new();
    look_into(fs, dir, "", &mut state);
    state
}

fn look_into(fs: &Fs, dir: &str, below: &str, state: &mut State) {
    let at = format!("{dir}{below}");
    let s = fs.stat(at.as_bytes(), false).unwrap();
    let content = match s.mode & libc::S_IFMT {
        libc::S_IFREG => read_all(&fs.open(at.as_bytes(), O_RDONLY, 0).unwrap()),
        libc::S_IFLNK => fs.readlink(at.as_bytes()).unwrap(),
        _ => Vec::new(),
    };
    assert!(s.mode & libc::S_IFMT == libc::S_IFDIR || s.size == content.len() as u64);
    let names = fs.xattrs(at.as_bytes(), false).unwrap();
    let attributes = names.into_iter().map(|n| {
        let value = fs.xattr(at.as_bytes(), &n, false).unwrap();
        (n, value)
    });
    let seen = Seen {
        mode: s.mode,
        nlink: s.nlink,
        content,
        attributes: attributes.collect(),
    };
    let is_dir = s.mode & libc::S_IFMT == libc::S_IFDIR;
    state.insert(below.to_owned(), seen);
    if is_dir {
        for e in fs.list(at.as_bytes()).unwrap() {
            let below = format!("{below}/{}", String::from_utf8(e.name).unwrap());
            look_into(fs, dir, &below, state);
        }
    }
}

/// The allowed states: before the operation, and after each step.
pub fn allowed(fs: &Fs, op: &Operation, dir: &str) -> Vec<State> {
    furnish(fs, dir);
    let mut place = Place::new(fs, dir);
    (op.before)(&mut place).unwrap();
    let mut states = vec![look(fs, dir)];
    for step in &op.steps {
        step(&mut place).unwrap_or_else(|e| panic!("{}: {e}", op.name));
        states.push(look(fs, dir));
    }
    clear(fs, dir);
    states
}

/// Whether the operation may leave `state`, given the states `allowed` before and after its steps.
pub fn is_allowed(op: &Operation, state: &State, allowed: &[State]) -> bool {
    allowed.contains(state)
        || op.torn
            && allowed.windows(2).any(|w| {
                // All but the content must be as before or as after the step. Each byte must be as
                // in one of these two states.
                let shaped = |like: &State| {
                    state.len() == like.len()
                        && state.iter().all(|(path, seen)| {
                            like.get(path).is_some_and(|l| {
                                (seen.mode, seen.nlink, &seen.attributes, seen.content.len())
                                    == (l.mode, l.nlink, &l.attributes, l.content.len())
                            })
                        })
                };
                w.iter().any(shaped)
                    && state.iter().all(|(path, seen)| {
                        let byte = |s: &State, i: usize| {
                            s.get(path).and_then(|x| x.content.get(i).copied())
                        };
                        seen.content
                            .iter()
                            .enumerate()
                            .all(|(i, c)| w.iter().any(|s| byte(s, i).unwrap_or(0) == *c))
                    })
            })
}

/// Removes `dir` with all that is in it.
pub fn clear(fs: &Fs, dir: &str) {
    for e in fs.list(dir.as_bytes()).unwrap() {
        let path = format!("{dir}/{}", String::from_utf8(e.name).unwrap());
        if e.kind == libc::S_IFDIR {
            clear(fs, &path);
        } else {
            fs.unlink(path.as_bytes()).unwrap();
        }
    }
    fs.rmdir(dir.as_bytes()).unwrap();
}
