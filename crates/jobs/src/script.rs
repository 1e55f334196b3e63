//! The spec in a job script: lines that begin with `#STOKER`.

use crate::yaml::{At, Fault};

/// What such a line begins with.
pub const DIRECTIVE: &str = "#STOKER";

/// The spec in a script: what stands behind `#STOKER`, with every other line left empty, so that a fault names the line of the script. None
/// if there is no such line. Behind the word a blank is taken away; what is indented further stays so.
pub fn spec_of_script(script: &str) -> Result<Option<String>, Fault> {
    let (mut text, mut is_there) = (String::new(), false);
    for (number, line) in (1..).zip(script.lines()) {
        if let Some(rest) = line.strip_prefix(DIRECTIVE) {
            is_there = true;
            match rest.strip_prefix(' ') {
                // As many blanks as the word is long: columns are those of the script.
                Some(rest) => {
                    text.extend(std::iter::repeat_n(' ', DIRECTIVE.len() + 1));
                    text.push_str(rest);
                }
                None if rest.trim().is_empty() => {}
                None => {
                    let at = At { line: number, column: DIRECTIVE.len() as u32 + 1 };
                    return Err(Fault::new(at, format!("a blank is expected behind `{DIRECTIVE}`")));
                }
            }
        }
        text.push('\n');
    }
    Ok(is_there.then_some(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_spec;

    #[test]
    fn faults_name_lines_of_the_script() {
        let script = "#!/bin/sh\n#SBATCH -N1\n#STOKER data:\n#STOKER   mounts:\n#STOKER     - source: s3://a/b\n\
                      #STOKER       target: /in\necho hello\n#STOKER   scratch_per_node: 5 apples\n";
        let text = spec_of_script(script).unwrap().unwrap();
        let fault = read_spec(&text).unwrap_err();
        assert_eq!((fault.at.line, fault.at.column), (8, 29), "{fault}");
        let good = script.replace("apples", "GB");
        let spec = read_spec(&spec_of_script(&good).unwrap().unwrap()).unwrap().spec;
        assert_eq!((spec.mounts[0].source.as_str(), spec.scratch_per_node), ("s3://a/b", 5_000_000_000));
        assert_eq!(spec_of_script("#!/bin/sh\necho"), Ok(None));
        assert!(spec_of_script("#STOKERx: 1").unwrap_err().message.contains("blank"));
    }
}
