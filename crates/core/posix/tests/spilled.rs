//! Spilled files: random operations of all nodes, compared with a plain file. Each node has only
//! some MiB, so that room runs out all the time.

mod support;

use forebay_media::fault::{self, Point};
use forebay_posix::{Errno, File, Fs, ObjectId};
use support::nodes::Nodes;
use support::*;

const MIB: usize = 1 << 20;
/// Faults are planned for a whole process, so only one test at a time runs.
static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
/// Number of files that exist at a time.
const FILES: usize = 7;

/// The expected content of a file. Bytes of a write that failed for lack of room may have been
/// written or not, so the test then reads the file and takes over what it finds.
struct Model {
    path: String,
    content: Vec<u8>,
}

fn open<'a>(fs: &'a Fs, path: &str, flags: i32) -> File<'a> {
    fs.open(path.as_bytes(), O_RDWR | flags, 0o600).unwrap()
}

/// Writes as many bytes as the pool has room for. Returns their number.
fn put(f: &File<'_>, bytes: &[u8], at: u64) -> usize {
    let mut done = 0;
    while done < bytes.len() {
        match f.write_at(&bytes[done..], at + done as u64) {
            Ok(n) => done += n,
            Err(e) => {
                assert_eq!(e, Errno::NOSPC);
                break;
            }
        }
    }
    done
}

fn same(got: &[u8], wanted: &[u8], story: &str) {
    assert_eq!(got.len(), wanted.len(), "{story}");
    if let Some(at) = got.iter().zip(wanted).position(|(a, b)| a != b) {
        panic!(
            "{story}: byte {at} of {} is {}, not {}",
            got.len(),
            got[at],
            wanted[at]
        );
    }
}

#[test]
fn random_operations_of_all_nodes() {
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    let nodes = Nodes::new("spilled", 3, &["memory:5M"], 100);
    let views = &nodes.views;
    let seed = std::env::var("FOREBAY_SEED").map_or(1, |s| s.parse().unwrap());
    let mut ends = 0;
    for round in seed..seed + 12 {
        let mut state = u64::wrapping_mul(round, 0x9e37_79b9_7f4a_7c15).wrapping_add(1);
        let mut random = |n: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % n
        };
        let mut files: Vec<Model> = Vec::new();
        // Number of operations that found no room.
        let mut full = 0;
        for step in 0..150u64 {
            let fs = &views[random(3) as usize];
            if files.len() < FILES {
                let path = format!("/{round}-{step}");
                open(fs, &path, O_CREAT).close().unwrap();
                let content = Vec::new();
                files.push(Model { path, content });
            }
            let n = random(files.len() as u64) as usize;
            let Model { path, content } = &mut files[n];
            let story = format!("round {round}, step {step}, {path}");
            let file = open(fs, path, 0);
            let size = content.len() as u64;
            let len = random(3 * MIB as u64) as usize >> random(6);
            match random(12) {
                0..4 => {
                    let at = random(size + 1) + random(8) / 7 * random(3 * MIB as u64);
                    let bytes = pattern(step, len);
                    let done = put(&file, &bytes, at);
                    full += usize::from(done < len);
                    if done > 0 {
                        let end = at as usize + done;
                        content.resize(content.len().max(end), 0);
                        content[at as usize..end].copy_from_slice(&bytes[..done]);
                    }
                    // Bytes that were written once have room, so writing them again succeeds.
                    if at + len as u64 <= size && random(2) == 0 {
                        assert_eq!(
                            file.write_at(&content[at as usize..][..done], at),
                            Ok(done),
                            "{story}"
                        );
                    }
                }
                4..6 => {
                    let bytes = pattern(step, len);
                    let log = open(fs, path, O_APPEND);
                    let mut buffer = Vec::new();
                    match log.write_at(&bytes, 0) {
                        Ok(n) => buffer.extend_from_slice(&bytes[..n]),
                        Err(e) => assert_eq!(e, Errno::NOSPC, "{story}"),
                    }
                    full += usize::from(buffer.len() < len);
                    content.extend_from_slice(&buffer);
                    log.close().unwrap();
                }
                6 => {
                    let to = random(size + 2 * MIB as u64);
                    file.set_len(to).unwrap();
                    content.resize(to as usize, 0);
                }
                7 => {
                    file.set_len(0).unwrap();
                    content.clear();
                }
                8 if content.len() > 1 => {
                    let other = open(&views[random(3) as usize], path, 0);
                    let at = random(size);
                    let mut got = vec![0; len.min((size - at) as usize)];
                    assert_eq!(other.read_at(&mut got, at), Ok(got.len()), "{story}");
                    same(&got, &content[at as usize..][..got.len()], &story);
                    other.close().unwrap();
                }
                9 => {
                    file.close().unwrap();
                    fs.unlink(path.as_bytes()).unwrap();
                    files.swap_remove(n);
                    nodes.drop_parts();
                    continue;
                }
                10 => file.sync().unwrap(),
                _ => {
                    let other = open(&views[random(3) as usize], path, 0);
                    same(&read_all(&other), content, &story);
                    other.close().unwrap();
                }
            }
            file.close().unwrap();
        }
        println!("round {round}: {full} times full");
        ends += full;
        for Model { path, content } in files.drain(..) {
            for view in views {
                let file = open(view, &path, 0);
                same(
                    &read_all(&file),
                    &content,
                    &format!("round {round}, {path}"),
                );
                file.close().unwrap();
            }
        }
        nodes.assert_whole();
        for n in views[0].open(b"/", 0, 0).unwrap().entries().unwrap() {
            if n.name.starts_with(format!("{round}-").as_bytes()) {
                views[1].unlink(&[b"/", &n.name[..]].concat()).unwrap();
            }
        }
        nodes.drop_parts();
        assert_eq!(nodes.used(), 0, "round {round}: pages are left");
    }
    assert!(ends > 10, "the pool was full {ends} times only");
}

#[test]
fn a_file_is_made_where_the_records_have_room() {
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    let nodes = Nodes::new("records", 3, &["memory:8M"], 100);
    for n in 0..12 {
        let (fs, path) = (&nodes.views[0], format!("/f{n}"));
        // There is no room for the record of the new file on its creator's node.
        fault::plan(Point::Records, 0, Errno::NOSPC, false);
        let made = fs.open(path.as_bytes(), O_CREAT | O_EXCL | O_RDWR, 0o600);
        assert!(fault::end(), "{path}: nothing was noted");
        let file = made.unwrap();
        assert_eq!(file.write_at(b"abc", 0), Ok(3));
        let id = ObjectId(fs.stat(path.as_bytes(), true).unwrap().ino);
        assert_ne!(fs.cluster().home_of(id), Some(0), "{path}");
        file.close().unwrap();
        same(&read_all(&open(&nodes.views[2], &path, 0)), b"abc", &path);
    }
    nodes.assert_whole();
}

#[test]
fn a_file_whose_commit_finds_no_room_is_made_on_another_node() {
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    let nodes = Nodes::new("unmade", 2, &["memory:16M"], 60);
    let (mine, other) = (&nodes.views[0], &nodes.views[1]);
    let mut faults = 0;
    // For names whose entries are on either node, and for each commit of making a file.
    for k in 0..12 {
        for n in 0..4 {
            let (path, content) = (format!("/f{k}-{n}"), format!("{k} {n}"));
            fault::plan(Point::Commit, n, Errno::NOSPC, false);
            let made = mine.open(path.as_bytes(), O_RDWR | O_CREAT | O_EXCL, 0o600);
            faults += usize::from(fault::end());
            let file = match made {
                Ok(file) => file,
                Err(e) => {
                    assert_eq!(e, Errno::NOSPC, "{path}");
                    continue;
                }
            };
            assert_eq!(put(&file, content.as_bytes(), 0), content.len(), "{path}");
            let opened_again = open(other, &path, 0);
            let mut got = vec![0; content.len()];
            assert_eq!(
                opened_again.read_at(&mut got, 0),
                Ok(content.len()),
                "{path}"
            );
            assert_eq!(got, content.as_bytes(), "{path}");
        }
    }
    assert!(faults > 12, "only {faults} commits failed");
    nodes.assert_whole();
}
