//! `forebay cat`.

use crate::fail::{Fail, code};
use crate::output::{say, write};
use crate::paths::in_pool;
use forebay_client::Pool;
use forebay_posix::{Errno, Fs};
use std::ffi::OsString;
use std::sync::Arc;

pub fn cat(name: &str, paths: &[OsString]) -> Result<u8, Fail> {
    let pool = Arc::new(Pool::open(name)?);
    let fs = Fs::new(pool.clone());
    let mut status = code::OK;
    let mut buffer = vec![0; 1 << 20];
    for written in paths {
        if let Err(e) = print(&fs, &in_pool(written, &pool), &mut buffer)? {
            let what = forebay_staging::explain(e);
            say(format!(
                "{}: {what} in this pool",
                written.to_string_lossy()
            ));
            status = code::FAILED;
        }
    }
    Ok(status)
}

/// Prints one file. The outer error is that of the output, the inner one that of the file.
fn print(fs: &Fs, path: &[u8], buffer: &mut [u8]) -> Result<Result<(), Errno>, Fail> {
    let file = match fs.open(path, libc::O_RDONLY, 0) {
        Ok(file) => file,
        Err(e) => return Ok(Err(e)),
    };
    let mut at = 0;
    loop {
        match file.read_at(buffer, at) {
            Ok(0) => return Ok(Ok(())),
            Ok(n) => {
                write(&buffer[..n])?;
                at += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(e) => return Ok(Err(e)),
        }
    }
}
