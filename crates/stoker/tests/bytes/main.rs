//! One fault in one file of a real cell that is at rest (a bit flips, a block is zeros, a file is cut, gone, exchanged with another or
//! comes back from an older time), then the nodes start, then another node is lost: no byte is ever wrong, nothing that can be read
//! no more is told as safe, and what a second copy or the lake has is read.
//!
//! `STOKER_BYTES=500 cargo test -p stoker --test bytes -- --nocapture` says how many faults, `STOKER_SEED` asks for
//! other ones, `STOKER_FIRST=17` for those from the 17th on. `STOKER_KEEP` keeps the files of the last one that failed.

mod cell;
mod damage;
mod image;
#[path = "../storm/mod.rs"]
mod storm;

use cell::Cell;
use damage::Damage;
use image::Image;

/// Faults of a long run.
const LONG: u64 = 500;
/// The first one of a usual run, and how many.
const SAMPLE: (u64, u64) = (6, 2);

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn a_fault_in_any_file_is_never_a_wrong_byte_nor_a_hidden_loss() {
    let usual = if std::env::var_os("STOKER_FULL").is_some() { (0, LONG) } else { SAMPLE };
    let (first, count) =
        (number("STOKER_FIRST").unwrap_or(usual.0), number("STOKER_BYTES").unwrap_or(usual.1));
    let seed = number("STOKER_SEED").unwrap_or(1);
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().to_owned();
    if std::env::var_os("STOKER_KEEP").is_some() {
        eprintln!("kept: {}", folder.keep().display());
    }
    let image = Image::make(&path);
    let mut failed = Vec::new();
    for at in first..first + count {
        if let Err(why) = one(&image, seed, at) {
            eprintln!("{at}: FAILED: {why}");
            failed.push(format!("{at}: {why}"));
        }
    }
    assert!(
        failed.is_empty(),
        "{} of {count} faults, seed {seed} (STOKER_SEED={seed} STOKER_FIRST=N STOKER_BYTES=1 repeats one):\n{}",
        failed.len(),
        failed.join("\n")
    );
    eprintln!("{count} faults in files, seed {seed}: no wrong byte, no hidden loss");
}

/// One fault, from the image to the loss of another node.
fn one(image: &Image, seed: u64, at: u64) -> Result<(), String> {
    let folder = image.copy();
    let damage = Damage::choose(&folder, image, seed, at);
    damage.apply(&folder, image);
    let outcome = std::panic::catch_unwind(|| Cell::start(&folder, &damage).judge(image));
    match outcome {
        Ok(Ok(words)) => {
            eprintln!("{at}: {damage}: {words}");
            Ok(())
        }
        Ok(Err(why)) => Err(format!("{damage}: {why}")),
        Err(_) => Err(format!("{damage}: the test itself failed, see above")),
    }
}
