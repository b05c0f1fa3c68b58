//! Sets the SONAME of `libforebay_iov.so`. The SONAME contains the ABI number (`IOV_ABI` in
//! `include/forebay/iov.h`), so a program never starts with a library of another ABI.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::{env, fs};

const HEADER: &str = "../../../include/forebay/iov.h";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={HEADER}");
    let header = fs::read_to_string(HEADER).expect(HEADER);
    let abi = header
        .lines()
        .find_map(|line| line.strip_prefix("#define IOV_ABI "))
        .expect("IOV_ABI in the header");
    let soname = format!("libforebay_iov.so.{}", abi.trim());
    // Not `rustc-cdylib-link-arg`: cargo would pass it on to the libraries of crates that use this
    // one.
    println!("cargo:rustc-link-arg=-Wl,-soname,{soname}");

    // Programs that are linked with the library in target/PROFILE find it by its SONAME there.
    // OUT_DIR is target/PROFILE/build/NAME/out.
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    if let Some(profile) = Path::new(&out).ancestors().nth(3) {
        let link = profile.join(&soname);
        if fs::symlink_metadata(&link).is_err() {
            // Another build script may have created the link meanwhile.
            let _ = symlink("libforebay_iov.so", &link);
        }
    }
}
