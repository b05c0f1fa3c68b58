//! `forebay mover`: carries out this node's part of a staging.

use crate::fail::{Fail, code};
use forebay_client::Pool;
use forebay_posix::Fs;
use forebay_staging::mover;
use std::sync::Arc;

pub fn main(name: &str, node: u32) -> Result<u8, Fail> {
    let opened = Pool::open_node(name, Some(node)).map_err(|e| e.to_string());
    let pool = opened.and_then(|pool| match pool.keeper_pid() {
        Some(_) => Ok(Arc::new(pool)),
        None => Err("its daemon is dead".into()),
    });
    let fs = pool.map(|pool| (Fs::for_staging(pool.clone()), pool.config().mount.clone()));
    let pool = match &fs {
        Ok((fs, mount)) => Ok((fs, mount.as_str())),
        Err(why) => Err(why.clone()),
    };
    let input = std::io::BufReader::new(std::io::stdin());
    mover(pool, input, std::io::stdout()).map_err(|e| {
        Fail::failed(format!(
            "can't report to the process that leads the staging: {e}"
        ))
    })?;
    Ok(code::OK)
}
