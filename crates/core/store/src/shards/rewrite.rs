//! Writes records for a repair: keys and values as they are stored, without the operations of
//! `operations.rs`.

use crate::lmdb::{Env, OnFull, Room};
use crate::process::Critical;
use crate::record::Change;
use crate::{PAGE, Store};
use rustix::io::Result;
use std::path::Path;

/// Maximum number of changes of one transaction.
const BATCH: usize = 100;

/// Writes a new record file that contains these keys and values.
///
/// # Errors
/// ENOSPC and errors of the file system.
pub(crate) fn write_file(
    path: &Path,
    map_size: usize,
    records: &[(Vec<u8>, Vec<u8>)],
) -> Result<()> {
    let fresh = Env::new(path.to_owned(), map_size);
    let room = Room::default();
    for batch in records.chunks(BATCH) {
        let bytes = batch.iter().map(|(k, v)| k.len() + v.len() + 64).sum();
        let mut txn = fresh.write(&room, bytes, OnFull::Fails)?;
        for (key, value) in batch {
            txn.put(key, value)?;
        }
        txn.commit()?;
    }
    if records.is_empty() {
        fresh.write(&room, 0, OnFull::Fails)?.commit()?;
    }
    Ok(())
}

/// Writes changes of records, shard by shard, in batches.
///
/// # Errors
/// ENOSPC; EIO.
pub(crate) fn write_changes(store: &Store, changes: &[Change]) -> Result<()> {
    let _critical = Critical::enter();
    for (shard, env) in store.files.iter().enumerate() {
        let own: Vec<&Change> = changes.iter().filter(|c| c.0 == shard).collect();
        for batch in own.chunks(BATCH) {
            let bytes: usize = batch
                .iter()
                .filter_map(|c| c.2.as_ref())
                .map(Vec::len)
                .sum();
            let on_full = match bytes {
                0 => OnFull::Removes,
                _ => OnFull::Fails,
            };
            // Each change may need a separate page.
            let room = bytes + batch.len() * PAGE;
            let mut txn = env.write(&store.control.shard(shard).room, room, on_full)?;
            for (_, key, value) in batch {
                match value {
                    Some(value) => txn.put(key, value)?,
                    None => _ = txn.del(key)?,
                }
            }
            txn.commit()?;
        }
    }
    Ok(())
}
