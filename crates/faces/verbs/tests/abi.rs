//! Compares the Rust layout of the C types with `tests/verbs/abi.txt`, which `tests/verbs/run.py`
//! compares with the headers.

use forebay_iov::abi::*;
use std::mem::offset_of;

macro_rules! layout {
    ($to:expr, $name:literal, $type:ty $(, $field:ident)*) => {
        $to.push(format!("struct {} {}", $name, size_of::<$type>()));
        $( $to.push(format!("{}.{} {}", $name, stringify!($field), offset_of!($type, $field))); )*
    };
}

#[test]
fn layouts_are_those_recorded() {
    let mut all = vec![
        format!("IOV_ABI {ABI}"),
        format!("IOV_BACKEND_ABI {BACKEND_ABI}"),
    ];
    layout!(all, "iov_uuid", Uuid);
    layout!(all, "iov_token", Token);
    layout!(all, "iov_pair", Pair, key, value);
    layout!(
        all,
        "iov_options",
        Options,
        size,
        backend,
        controls,
        meta,
        meta_count
    );
    layout!(
        all,
        "iov_record",
        Record,
        name,
        backend,
        controls,
        meta,
        meta_count,
        uuid
    );
    layout!(all, "iov_address", Address, workspace, name, uuid);
    // Without this attribute, rustfmt uses a line for each field.
    #[rustfmt::skip]
    layout!(
        all, "iov_backend_table", BackendTable, abi, outlives_process, size, kind, init, shutdown, supports, create,
        open, remove, read, write, append, truncate, length, sync, close, error
    );
    let recorded = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/verbs/abi.txt");
    let recorded = std::fs::read_to_string(recorded).unwrap();
    let recorded: Vec<&str> = recorded
        .lines()
        .filter(|line| line.starts_with("struct ") || line.contains('.') || line.contains("_ABI "))
        .collect();
    assert_eq!(all, recorded);
}
