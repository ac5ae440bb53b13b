//! Configurations of real images and odd ones. What is written of each was recorded with oci-spec 0.10, whose types
//! these were before, and what is refused is in its words.

use super::*;
use crate::json::{self, Json};

/// Returns what is written of a document that was read, or why it can't be read.
fn rewritten(text: &str) -> Result<String, String> {
    let config: ImageConfiguration =
        json::from_slice(text.as_bytes()).map_err(|error| error.to_string())?;
    serde_json::to_string(&config).map_err(|error| error.to_string())
}

#[test]
fn the_specifications_example_is_written_as_it_was_read() {
    // `config.md`, "Example", without spaces.
    let text = concat!(
        r#"{"created":"2015-10-31T22:22:56.015925234Z","author":"Alyssa P. Hacker <alyspdev@example.com>","#,
        r#""architecture":"amd64","os":"linux","config":{"User":"alice","ExposedPorts":{"8080/tcp":{}},"#,
        r#""Env":["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin","FOO=oci_is_a","#,
        r#""BAR=well_written_spec"],"Entrypoint":["/bin/my-app-binary"],"Cmd":["--foreground","--config","#,
        r#""/etc/my-app.d/default.cfg"],"Volumes":{"/var/job-result-data":{},"/var/log/my-app-logs":{}},"#,
        r#""WorkingDir":"/home/alice","Labels":{"com.example.project.git.commit":"45a939b2999782a3f005621a8d0f29","#,
        r#""com.example.project.git.url":"https://example.com/project.git"}},"rootfs":{"type":"layers","diff_ids":["#,
        r#""sha256:c6f988f4874bb0add23a778f753c65efe992244e148a1d2ec2a8b664fb66bbd1","#,
        r#""sha256:5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef"]},"history":[{"created":"#,
        r#""2015-10-31T22:22:54.690851953Z","created_by":"/bin/sh -c #(nop) ADD file:a3bc1e842b69636 in /"},{"#,
        r#""created":"2015-10-31T22:22:55.613815829Z","created_by":"/bin/sh -c #(nop) CMD [\"sh\"]","#,
        r#""empty_layer":true}]}"#
    );
    assert_eq!(rewritten(text).as_deref(), Ok(text));
    let config: ImageConfiguration = json::from_slice(text.as_bytes()).unwrap();
    let run = config.config().as_ref().unwrap();
    assert_eq!(
        run.exposed_ports().as_deref(),
        Some(&["8080/tcp".to_owned()][..])
    );
    assert_eq!(config.rootfs().diff_ids().len(), 2);
    let history = config.history().as_ref().unwrap();
    let layerless = history.iter().map(History::empty_layer);
    assert!(layerless.eq([None, Some(true)]));
}

#[test]
fn fields_that_only_docker_has_are_left_out_when_read() {
    let docker = concat!(
        r#"{"architecture":"arm64","config":{"Hostname":"","Domainname":"","User":"","AttachStdin":false,"#,
        r#""Tty":false,"Env":["PATH=/bin"],"Cmd":["bash"],"Image":"sha256:2c4","Volumes":null,"WorkingDir":"","#,
        r#""Entrypoint":null,"OnBuild":null,"Labels":null,"Healthcheck":{"Test":["NONE"]},"ArgsEscaped":true},"#,
        r#""container":"5b1","container_config":{"Cmd":["/bin/sh"]},"created":"2023-01-11T02:35:14Z","#,
        r#""docker_version":"20.10.12","moby.buildkit.trace":"e30=","os":"linux","os.version":"10.0.1","#,
        r#""os.features":["win32k"],"rootfs":{"type":"layers","diff_ids":["sha256:aa"]},"variant":"v8","#,
        r#""history":[{"created":"2023","comment":"buildkit","empty_layer":false}]}"#
    );
    let expected = concat!(
        r#"{"created":"2023-01-11T02:35:14Z","architecture":"arm64","os":"linux","os.version":"10.0.1","#,
        r#""os.features":["win32k"],"variant":"v8","config":{"User":"","Env":["PATH=/bin"],"Cmd":["bash"],"#,
        r#""WorkingDir":""},"rootfs":{"type":"layers","diff_ids":["sha256:aa"]},"#,
        r#""history":[{"created":"2023","comment":"buildkit","empty_layer":false}]}"#
    );
    assert_eq!(rewritten(docker).as_deref(), Ok(expected));
}

#[test]
fn odd_documents_are_read_as_go_reads_them() {
    const EMPTY: &str = r#""architecture":"","os":"","rootfs":{"type":"","diff_ids":[]}"#;
    let with = |rest: &str| format!("{{{EMPTY}{rest}}}");
    let config = |rest: &str| {
        format!(
            r#"{{"architecture":"","os":"","config":{rest},"rootfs":{{"type":"","diff_ids":[]}}}}"#
        )
    };
    for (text, expected) in [
        ("{}", with("")),
        ("null", with("")),
        (
            r#"{"os":null,"rootfs":null,"config":null,"history":null}"#,
            with(""),
        ),
        (r#"{"history":[]}"#, with(r#","history":[]"#)),
        (
            r#"{"history":[null,{"empty_layer":null}]}"#,
            with(r#","history":[{},{}]"#),
        ),
        (r#"{"config":{}}"#, config("{}")),
        (
            r#"{"CONFIG":{"cmd":[null,"x"]},"config":{"ENV":[]}}"#,
            config(r#"{"Env":[],"Cmd":["","x"]}"#),
        ),
        (
            r#"{"config":{"Labels":{"b":"1","a":null},"Volumes":{}}}"#,
            config(r#"{"Volumes":{},"Labels":{"a":"","b":"1"}}"#),
        ),
        (
            r#"{"config":{"ExposedPorts":{"90":null,"80":{"x":1},"90":{}}}}"#,
            config(r#"{"ExposedPorts":{"80":{},"90":{}}}"#),
        ),
        (
            r#"{"OS":"linux","Architecture":"armbe","RootFS":{"TYPE":"x","Diff_IDs":["a",null]}}"#,
            r#"{"architecture":"armbe","os":"linux","rootfs":{"type":"x","diff_ids":["a",""]}}"#
                .to_owned(),
        ),
    ] {
        assert_eq!(rewritten(text), Ok(expected), "{text}");
    }
}

#[test]
fn what_has_no_place_in_a_configuration_is_refused() {
    for (text, expected) in [
        (
            r#"{"architecture":5}"#,
            "invalid type: integer `5`, expected a string",
        ),
        (r#"{"os":[]}"#, "invalid type: sequence, expected a string"),
        (
            r#"{"author":1.5}"#,
            "invalid type: floating point `1.5`, expected a string",
        ),
        (r#"{"os.features":"x"}"#, "a string in the place of a list"),
        (r#"{"config":[]}"#, "a list in the place of an object"),
        (
            r#"{"config":{"ExposedPorts":{"80":1}}}"#,
            "a number in the place of an object",
        ),
        (
            r#"{"config":{"Volumes":["/x"]}}"#,
            "a list in the place of an object",
        ),
        (
            r#"{"config":{"Labels":{"a":1}}}"#,
            "invalid type: integer `1`, expected a string",
        ),
        (
            r#"{"config":{"Cmd":"sh"}}"#,
            "a string in the place of a list",
        ),
        (r#"{"history":{}}"#, "an object in the place of a list"),
        (
            r#"{"history":[{"empty_layer":"true"}]}"#,
            "invalid type: string \"true\", expected a boolean",
        ),
        (
            r#"{"rootfs":{"type":18446744073709551616}}"#,
            "invalid type: floating point `1.8446744073709552e+19`, expected a string",
        ),
        (
            r#"{"rootfs":{"diff_ids":[{}]}}"#,
            "invalid type: map, expected a string",
        ),
        (
            r#"{"created":1e999}"#,
            "number out of range at line 1 column 16",
        ),
    ] {
        assert_eq!(rewritten(text), Err(expected.to_owned()), "{text}");
    }
}

#[test]
fn the_same_configuration_has_the_same_bytes() {
    let words = |words: &[&str]| Some(words.iter().map(|&word| word.to_owned()).collect());
    let mut config = Config::default();
    config
        .set_volumes(words(&["/z", "/a", "/z"]))
        .set_exposed_ports(Some(Vec::new()))
        .set_labels(Some(
            [("b", "2"), ("a", "1")]
                .map(|(k, v)| (k.into(), v.into()))
                .into(),
        ));
    let expected = r#"{"ExposedPorts":{},"Volumes":{"/a":{},"/z":{}},"Labels":{"a":"1","b":"2"}}"#;
    assert_eq!(serde_json::to_string(&config).unwrap(), expected);
    let fields = Json::of(&Config::default()).unwrap();
    assert_eq!(fields, Json::Object(Vec::new()));
}
