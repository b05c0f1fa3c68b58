//! Operations on a file that the ranks of an MPI communicator have open together.
//!
//! Rank 0 creates, truncates, locks and removes the file; the other ranks open the existing file.
//! All ranks must call each function, which fails on all of them or on none.

use crate::config::Config;
use crate::file::{self, Failure, Mode, Open, SharedIdentity};
use crate::mpi::Group;
use forebay_controls::Consistency;
use rustix::io::Errno;

/// Opens a file. The second value is the file's size in bytes, as rank 0 sees it.
///
/// # Errors
/// The error of opening on any rank; EINVAL for `consistency=session`, under which a rank could
/// read outdated metadata; ESTALE if a rank has opened another file than rank 0.
pub fn open(
    group: &Group,
    name: &str,
    mode: Mode,
    config: Result<Config, Failure>,
) -> Result<(Open, u64), Failure> {
    let config = group.agree(config.and_then(usable))?;
    let first = if group.leads() {
        Some(file::open(name, mode, &config))
    } else {
        None
    };
    let first = group.agree(first.transpose())?;
    let opened = match first {
        Some(open) => Ok(open),
        // Rank 0 has created the file and declared its controls.
        None => {
            let mode = Mode {
                write: mode.write,
                ..Mode::default()
            };
            let controls = None;
            file::open(
                name,
                mode,
                &Config {
                    controls,
                    ..config.clone()
                },
            )
        }
    };
    let about = opened.and_then(|open| Ok((open.size()?, open.shared_identity()?, open)));
    let agreed = group
        .agree(about)
        .and_then(|(size, identity, open)| same(group, open, size, identity));
    if agreed.is_err() && group.leads() && mode.create && mode.exclusive {
        // Rank 0 has just created the file, so removing it loses no data.
        let _ = file::remove(name, &config);
    }
    agreed
}

fn usable(config: Config) -> Result<Config, Failure> {
    match config.controls.and_then(|c| c.consistency) {
        Some(Consistency::Session) => Err((
            Errno::INVAL,
            "consistency=session: ranks read what others have just written; declare commit or sequential".into(),
        )),
        _ => Ok(config),
    }
}

/// Checks that all ranks have opened the same file as rank 0. Returns rank 0's size.
fn same(
    group: &Group,
    open: Open,
    size: u64,
    identity: SharedIdentity,
) -> Result<(Open, u64), Failure> {
    let numbers: Vec<u8> = (identity.iter().chain([&size]))
        .flat_map(|n| n.to_le_bytes())
        .collect();
    let mut leader = numbers.clone();
    group.broadcast(&mut leader, 0)?;
    let (mine, (theirs, size)) = (&numbers[..40], leader.split_at(40));
    let size = u64::from_le_bytes(size.try_into().expect("8 bytes"));
    let mine = if mine == theirs {
        Ok((open, size))
    } else {
        Err((
            Errno::STALE,
            "the name is another file than on rank 0: not a node of the same pool, or no shared file system".into(),
        ))
    };
    group.agree(mine)
}

/// Sets the size in bytes, after all ranks have written.
///
/// # Errors
/// The error of publishing on any rank, or of setting the size on rank 0.
pub fn set_size(group: &Group, open: &Open, size: u64) -> Result<(), Failure> {
    group.agree(open.publish())?;
    let set = if group.leads() {
        open.size().and_then(|now| {
            if now == size {
                Ok(())
            } else {
                open.set_size(size)
            }
        })
    } else {
        Ok(())
    };
    group.agree(set)
}

/// Closes the file. Afterwards all processes see the bytes that the ranks have written.
///
/// # Errors
/// The error of closing on any rank.
pub fn close(group: &Group, open: Open) -> Result<(), Failure> {
    group.agree(open.publish().and_then(|()| open.close()))
}
