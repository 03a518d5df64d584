# From a dataset's name to who holds which sample.


# Compute nodes seldom have internet.
localrules:
    download,


rule download:
    # INPUT   nothing: the dataset's publisher, a mirror, or the package itself
    # OUTPUT  the dataset's arrays, shared by all studies: never deleted first, as another study may be reading them
    input:
        ask.inputs("download"),
    output:
        samples=update("data/{dataset}/samples.safetensors"),
    log:
        "data/{dataset}/download.log",
    # What is wrong with the data is said before anything is trained.
    priority: 1
    conda:
        "../envs/clusterfl.yaml"
    threads: 1
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        settings=ask.settings("download"),
        code=ask.code("download"),
        dataset=ask.dataset,
    shell:
        """
        clusterfl download {params.dataset} 2>&1 | tee {log:q}
        """


rule partition:
    # INPUT   the dataset's arrays
    # OUTPUT  sample, client, split, role, transform, true cluster; and counts by client and class
    input:
        ask.inputs("partition"),
    output:
        partition="results/{study}/{federation}/seed{seed}/partition.parquet",
        classes="results/{study}/{federation}/seed{seed}/partition.classes.parquet",
    log:
        "results/{study}/logs/{federation}/seed{seed}/partition.log",
    group:
        requests.group("partition")
    conda:
        "../envs/clusterfl.yaml"
    threads: 1
    resources:
        mem_mb=requests.memory("partition", 2000),
        runtime=requests.minutes("partition", 10),
    params:
        settings=ask.settings("partition"),
        code=ask.code("partition"),
        digest=ask.digest("partition"),
    shell:
        """
        clusterfl partition \\
        --config results/{wildcards.study:q}/settings.json \\
        --federation {wildcards.federation:q} \\
        --seed {wildcards.seed} \\
        --digest {params.digest} --needed \\
        2>&1 | tee {log:q}
        """
