# The whole chain, stage by stage; see README.md for the picture.
# snakemake                               the default study (config.yaml)
# snakemake --configfile my-study.yaml    another one, and nothing of the default
# snakemake --snakefile HERE/Snakefile --directory THERE    leaves this folder as it is, which may be read-only
from pathlib import Path

from snakemake.utils import min_version

min_version("9.10")


report: "workflow/report/workflow.rst"


if not config:

    configfile: "config.yaml" if Path("config.yaml").exists() else f"{workflow.basedir}/config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/one_shot.smk"
include: "workflow/rules/federate.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: True
    input:
        ask.targets(),
