"""What the walk says, English and Chinese side by side; probe.messages holds it under `walk.`."""

WALK: dict[str, tuple[str, str]] = {
    # The page
    "title": ("Attention step by step: {text}", "注意力，一步一步：{text}"),
    "subtitle": (
        "The textbook example to the digit, then the same steps in {model}",
        "课本例子，算到每一位；再看 {model} 的同样步骤",
    ),
    "strip": ("first {shown} of {dims}, length {length}", "前 {shown} 维（共 {dims}），长度 {length}"),
    "strip_whole": ("{dims} numbers, length {length}", "共 {dims} 维；长度 {length}"),
    "by_formula": ("by the formula", "按公式"),
    "in_model": ("in the model", "模型里"),
    "example": ("The example, to the digit", "课本例子，一位不差"),
    "example_text": (
        "我喜欢苹果 (I like apples) is read as three tokens of four numbers each, and 苹果 asks the others. The given numbers are those of “the article”: a beginners' article in Chinese that this project grew from. Steps 1 and 2 stand by themselves. Step 3 gives query, keys and values, and each later step is computed from them.",
        "“我喜欢苹果”按三个词元读，每个词元四个数，由“苹果”去看其他词。给出的数都来自一篇中文入门文章（下称“文章”），本项目由它而起。第 1、2 步自成一段；第 3 步给出查询、键和值，此后每一步都由它们算出。",
    ),
    "colours": (
        "Red is above zero, blue below; the deeper, the further away, on one scale for the rows of a table. Of a long vector the first six numbers are written and a strip shows the first 32 in colour; the 5 % of its numbers that lie furthest from zero all have the deepest colour. Length is the root of the sum of the squares. Weights lie between 0 and 1 and are blue.",
        "红色大于零，蓝色小于零，颜色越深离零越远；同一表内各行用同一刻度。长向量写出前六个数，后面的长条用颜色显示前 32 个；离零最远的 5 % 的数都用最深的颜色。长度是各数平方和的平方根。权重在 0 与 1 之间，用蓝色。",
    ),
    "position": ("Position: added to the embedding", "位置：加到词向量上"),
    "position_text": (
        "x is what the model goes on with: the word's embedding e plus a vector p for its place t. The article gives the third token the position [0, 0, 1, 0]. That is an illustration: the true rows of sines and cosines are in step 2.",
        "模型接下去用的是 x：词向量 e 加上表示位置 t 的向量 p。文章给第三个词元的位置是 [0 0 1 0]，这只是示意；真正的正弦和余弦行见第 2 步。",
    ),
    "embedding_row": (
        "embedding of 苹果",
        "“苹果”的词向量",
    ),
    "position_row": ("position, as in the article", "位置（文章的示意）"),
    "sum_row": ("sum", "相加"),
    "sinusoidal": ("The true sinusoidal rows", "真正的正弦位置行"),
    "sinusoidal_text": (
        "t is the place, counted from 0; d = 4 is how many numbers a vector has; i counts its pairs of numbers, 0 and 1. Only the row of place 0 consists of zeros and ones; no number in the table is learned (Vaswani et al. 2017). The sum with the true row of place 2 is another vector than in step 1.",
        "t 是位置，从 0 数起；d = 4 是向量里数的个数；i 数的是成对的数，取 0 和 1。只有位置 0 的一行全由 0 和 1 组成；表里没有一个数是学来的（Vaswani 等 2017）。加上位置 2 的真正那一行，得到的向量与第 1 步不同。",
    ),
    "position_of": ("position {number}", "位置 {number}"),
    "sum_true": ("sum with the true row", "加上真正的行"),
    "given": ("Query, keys, values", "查询、键、值"),
    "given_text": (
        "In a transformer three learned tables of numbers, W_Q, W_K and W_V, make them from each word's x. The query asks, the keys answer, the values are what is passed on. The article gives all three directly; they are not computed from the vector above.",
        "在 Transformer 里，三张学到的数表 W_Q、W_K、W_V 由每个词的 x 得到它们：查询发问，键应答，值是要传递的内容。文章直接给出这三样，并不是由上面的向量算出来的。",
    ),
    "query_of": (
        "query of {token}",
        "“{token}”的查询",
    ),
    "key_of": (
        "key of {token}",
        "“{token}”的键",
    ),
    "value_of": (
        "value of {token}",
        "“{token}”的值",
    ),
    "ex_scores": ("Scores: query times key", "分数：查询与键的内积"),
    "ex_scores_text": (
        "Each number of the query times the same number of the key, added up. j counts the words that are looked at.",
        "查询与键逐位相乘，再相加。j 数的是被看的词。",
    ),
    "ex_scaled": ("Scaling: divided by √4 = 2", "缩放：除以 √4 = 2"),
    "ex_scaled_text": (
        "d is how many numbers the query has, here 4. Nothing is hidden from 苹果 in the example, so there is no mask.",
        "d 是查询里数的个数，这里是 4。例子里没有向“苹果”隐藏任何词，所以没有掩码。",
    ),
    "ex_weights": ("Weights: softmax", "权重：softmax"),
    "ex_weights_text": (
        "The powers of e, divided by their sum (Σ adds up over all words i): nothing below 0, in all 1. How even the weights are is told by their entropy: it is {share} of that of three equal weights, so 苹果 looks at all three words nearly alike, and no grammar can be read from it.",
        "取 e 的幂再除以总和（Σ 对所有的词 i 求和）：都不小于 0，合计为 1。权重有多均匀，看它的熵：是三个相等权重的 {share}，也就是“苹果”看三个词几乎一样多，从中读不出语法。",
    ),
    "ex_output": ("Output: the weighted sum of the values", "输出：值的加权和"),
    "ex_output_text": (
        "With weights rounded to three digits it is the first row, as printed in the article; unrounded the second. This is a vector in the space of the values: its numbers cannot be held against those of the embedding. The article's numbers end here; W_O, residual and norm follow in the real model: python -m probe walk --model builtin:e5-small.",
        "权重先取三位小数，得第一行，即文章所印；不取整则得第二行。它在值的空间里，不能拿它的各位与词向量的各位相比。文章的数到此为止；W_O、残差和归一化在真实模型里接着走：python -m probe walk --model builtin:e5-small。",
    ),
    "rounded": ("from rounded weights", "用取整后的权重"),
    "unrounded": ("unrounded", "不取整"),
    "row_scores": ("scores", "分数"),
    "row_scaled": ("scaled", "缩放后"),
    "row_weights": ("weights", "权重"),
    "heads": ("Four heads", "四个头"),
    "heads_text": (
        "The article gives each of four heads four dimensions and lets W_O “reduce” sixteen to four. In the textbook's construction (Vaswani et al. 2017) the heads share the model's dimensions, here 4 / 4 = 1 for each: heads × head size = width, and W_O mixes what stands side by side without reducing it. Computed that way from the same numbers, every head divides by √1 and looks like this; beside it, real heads of {model}, layer {layer} (counted from 0).",
        "文章给四个头各四维，再由 W_O 把十六维“降”到四维。按课本的做法（Vaswani 等 2017），各头分享模型的维度，这里每头 4 / 4 = 1 维：头数 × 每头维数 = 模型宽度，W_O 把并排的结果混合，不降维。用同样的数这样计算，每个头除以 √1，结果如下；旁边是 {model} 第 {layer} 层（从 0 数起）真实的头。",
    ),
    "heads_width_same": (
        "{model} keeps to it: {heads} heads × {size} = {product} numbers side by side, as wide as a state.",
        "{model} 也是这样：{heads} 个头 × {size} = 并排 {product} 个数，与状态一样宽。",
    ),
    "heads_width_other": (
        "{model} does not keep to it: {heads} heads × {size} = {product} numbers side by side, and a state has {width}. Here W_O changes the width as well.",
        "{model} 不是这样：{heads} 个头 × {size} = 并排 {product} 个数，而状态有 {width} 个数。这里 W_O 也改变宽度。",
    ),
    "heads_example": ("The example in four heads of one dimension each", "课本例子：四个头，每头一维"),
    "heads_example_text": (
        "The numbers of step 3 once more, one dimension for each head. The last column is the one number that a head gives.",
        "还是第 3 步的数，每头一维。最后一列是这个头输出的那一个数。",
    ),
    "heads_real": (
        "Real heads of {model}, layer {layer}: weights read by {token}",
        "{model} 第 {layer} 层的真实的头：“{token}”的权重",
    ),
    "heads_chosen": (
        "{shown} of {count} heads are shown, head {head} of the steps above among them.",
        "{count} 个头中显示 {shown} 个，上面各步所用的头 {head} 在内。",
    ),
    "head_row": ("head {number}", "头 {number}"),
    "head_out": ("output", "输出"),
    "growth": ("Why divide by √d", "为什么除以 √d"),
    "growth_text": (
        "Random queries and eight random keys, each number with mean 0 and variance 1: the scores spread by √d. Undivided, the softmax soon gives nearly everything to one key, and the norm of its gradient ‖∂weights/∂scores‖ (how much the weights move when the scores move) vanishes: nothing is left to learn from. {draws} draws a row, mean ± half of its 95 % interval.",
        "随机的查询与八个随机的键，每个数均值 0、方差 1：分数的散布是 √d。不除的话，softmax 很快把几乎全部权重给一个键，梯度的范数 ‖∂权重/∂分数‖（分数动一点，权重动多少）随之消失，学不到东西。每行 {draws} 次抽样，均值 ± 95 % 区间的一半。",
    ),
    "growth_table": ("The softmax as d grows", "d 增大时的 softmax"),
    "col_dim": ("d", "d"),
    "col_scaled": ("divided by √d", "除以 √d"),
    "col_spread": ("spread of scores", "分数的散布"),
    "col_largest": ("largest weight", "最大权重"),
    "col_entropy": ("entropy / max", "熵 / 最大值"),
    "col_gradient": ("gradient norm", "梯度的范数"),
    "yes": ("yes", "是"),
    "no": ("no", "否"),
    "single": ("Why one map is not several", "为什么一张图不等于几张"),
    "single_text": (
        "All {heads} heads of the layer write into {token} together. With one attention row for all heads, how near could one come? The best of all rows leaves {best} of what they write, the mean of the heads' rows {mean}, and the best weights of any sign {free}. With equal heads it would be 0.",
        "这一层的 {heads} 个头一起写入“{token}”。若所有头共用一行注意力，能有多接近？所有可能的行里，最好的一行也剩下 {best} 写不出来；各头的平均行剩 {mean}；允许任意正负的权重剩 {free}。若各头相同，应为 0。",
    ),
    "single_table": ("The rows that stand for all heads", "代表所有头的一行"),
    "col_token": ("token", "词元"),
    "col_best": ("best row", "最好的一行"),
    "col_mean": ("mean of the heads", "各头平均"),
    "col_free": ("best free weights", "任意权重"),
    # The real model
    "real": ("The same steps in {model}", "{model} 里的同样步骤"),
    "real_text": (
        "{token} in layer {layer} (counted from 0), head {head}, of “{text}”. {equal} of {count} steps were computed here from the model's numbers of the step before, and equal its own to 10⁻⁵. A gap is a share of the largest number, where that is above 1.",
        "“{text}”中的“{token}”，第 {layer} 层（从 0 数起），第 {head} 个头。{count} 步中有 {equal} 步由模型上一步的数在这里重新算出，与模型自己的数相差不到 10⁻⁵。最大数超过 1 时，差按占最大数的比例计。",
    ),
    "real_listed": (
        "Not exposed by this family, each with the reason: {listed}.",
        "这一模型族不给出的有 {listed} 步，各附原因。",
    ),
    "place_real": (
        "{model} · layer {layer} · head {head} (counted from 0: layers 0 to {last_layer}, heads 0 to {last_head})",
        "{model} · 第 {layer} 层 · 第 {head} 个头（都从 0 数起：层 0 到 {last_layer}，头 0 到 {last_head}）",
    ),
    "example_first": (
        "First the textbook example, then {place}",
        "先是课本例子，再是 {place}",
    ),
    "place_default_model": (
        "{model} is the default model; --model takes another.",
        "{model} 是默认模型，用 --model 换一个。",
    ),
    "kind_learned": (
        "Position: one learned row for each place is added to the embedding.",
        "位置：每个位置有一行学到的向量，加到词向量上。",
    ),
    "kind_sinusoidal": (
        "Position: a row of sines and cosines is added to the embedding; it is not learned.",
        "位置：一行正弦和余弦加到词向量上，不是学出来的。",
    ),
    "kind_rotary": (
        "Position: nothing is added to the embedding; queries and keys are turned by angles that grow with the place (rotary).",
        "位置：词向量上什么也不加；查询和键按随位置增大的角度旋转（旋转位置编码）。",
    ),
    "kind_relative_bias": (
        "Position: the distance between two tokens adds a learned number to their score (relative bias).",
        "位置：两个词元的距离给它们的分数加一个学到的数（相对偏置）。",
    ),
    "kind_alibi": (
        "Position: the further away a token, the more is taken from its score, in a straight line (ALiBi).",
        "位置：词元越远，从分数里减得越多，成直线（ALiBi）。",
    ),
    "kind_none": ("Position: nothing marks it but the mask.", "位置：除掩码外没有任何标记。"),
    "tokens": ("Tokens", "词元"),
    "tokens_text": (
        "{count} tokens; {token} is followed. Names like <s> are special tokens that the model adds. In the formulas t is the place of {token}, counted from 0, here {place}; j and i count the tokens that it looks at.",
        "{count} 个词元，跟踪的是“{token}”。<s> 一类是模型加上的特殊词元。公式里 t 是“{token}”的位置，从 0 数起，这里是 {place}；j 和 i 数的是它所看的词元。",
    ),
    "tokens_several": (
        "{word} is {count} tokens here, {tokens}; the last one is followed, because in any model it may see the whole word.",
        "“{word}”在这里是 {count} 个词元：{tokens}；跟踪的是最后一个，因为无论什么模型，走到它时整个词都已读到。",
    ),
    "tokens_wider": (
        "The model has no token for {word} alone: what is followed belongs to {covers}.",
        "模型没有单独的“{word}”这个词元：跟踪的词元属于“{covers}”。",
    ),
    "tokens_shown": (
        "Where numbers stand under tokens, {shown} of the {count} are shown: the first, the word itself, and those to which this head gives most weight.",
        "凡在词元下列数之处，共 {count} 个词元只列出 {shown} 个：首个、该词本身，以及这个头给权重最多的。",
    ),
    "rows_shown": (
        "{shown} of {count} rows are shown.",
        "{count} 行中显示 {shown} 行。",
    ),
    "numbers": (
        "({count} numbers)",
        "（{count} 个数）",
    ),
    "length": (
        "length {length}",
        "长度 {length}",
    ),
    "arrow": (
        "← : from here on the letter stands for the new numbers.",
        "←：从这里起，这个字母代表新的数。",
    ),
    "as_before": (
        "Explained in step {number}.",
        "解释见第 {number} 步。",
    ),
    "verdict_equal": ("largest gap to the model's own {gap}", "与模型自己的数最大相差 {gap}"),
    "verdict_given": ("the model's own numbers, taken as they are", "模型自己的数，原样取用"),
    "verdict_missing": ("not exposed by this family: {why}", "这一模型族不给出：{why}"),
    "step_table_row": ("Embedding: the token's row of the table", "词向量：表中该词元的一行"),
    "step_position_row": (
        "Position: the row that is added",
        "位置：要加上的一行",
    ),
    "step_segment_row": (
        "Segment: the row that is added",
        "段：要加上的一行",
    ),
    "step_other_row": (
        "Another row that is added",
        "另外要加上的一行",
    ),
    "step_added": (
        "All of it added up",
        "全部相加",
    ),
    "step_embedded": ("What goes into the first layer", "进入第一层的状态"),
    "step_state": ("The state that this layer is given", "这一层得到的状态"),
    "step_read": (
        "What attention is given to read",
        "注意力读取的向量",
    ),
    "step_query": ("Query", "查询"),
    "step_query_normed": ("Query, normed", "查询，归一化后"),
    "step_query_scaled": ("Query, scaled", "查询，缩放后"),
    "step_query_turned": ("Query, turned by its position", "查询，按位置旋转后"),
    "step_angles": (
        "The angles of this place: cosines and sines",
        "这个位置的角度：余弦与正弦",
    ),
    "step_key": ("Keys of all tokens", "所有词元的键"),
    "step_key_normed": ("Keys, normed", "键，归一化后"),
    "step_key_scaled": ("Keys, scaled", "键，缩放后"),
    "step_key_turned": ("Keys, each turned by its position", "键，各按位置旋转后"),
    "step_value": ("Values of all tokens", "所有词元的值"),
    "step_value_normed": ("Values, normed", "值，归一化后"),
    "step_value_scaled": ("Values, scaled", "值，缩放后"),
    "step_value_turned": ("Values, turned", "值，旋转后"),
    "step_scores": ("Scores: query times each key", "分数：查询与每个键的内积"),
    "step_scaled": ("Scaled scores", "缩放后的分数"),
    "step_softcap": ("Scores, softly capped", "分数，软截断后"),
    "step_bias_row": ("The bias of each distance", "各距离的偏置"),
    "step_biased": ("Scores with the bias", "加上偏置的分数"),
    "step_mask": ("Mask: which keys may be seen", "掩码：哪些键看得见"),
    "step_masked": (
        "Scores with the mask",
        "加上掩码的分数",
    ),
    "step_weights": ("Weights: softmax", "权重：softmax"),
    "step_sink": ("Sink: the weight that goes to no token", "汇：不归任何词元的权重"),
    "step_mixed": ("Output of the head: the weighted sum of the values", "这个头的输出：值的加权和"),
    "step_heads": ("All heads, side by side", "所有的头，并排"),
    "step_written": (
        "Through W_O: what the heads write",
        "经过 W_O：各头写入的",
    ),
    "step_written_normed": (
        "What is written, normed",
        "写入的，归一化后",
    ),
    "step_residual": ("Residual: added to the state", "残差：加到状态上"),
    "step_residual_normed": ("The sum, normed", "和，归一化后"),
    "step_fed": (
        "What the feed-forward network adds",
        "前馈网络要加上的",
    ),
    "step_summed": ("The feed-forward network's output added", "再加上前馈网络的输出"),
    "step_next": ("The next state", "下一个状态"),
    "form_learned": (
        "Learned: row {row} of the table P.",
        "是学来的：表 P 的第 {row} 行。",
    ),
    "form_sinusoidal": (
        "Not learned: sines at the even places, cosines at the odd ones.",
        "不是学来的：偶数位是正弦，奇数位是余弦。",
    ),
    "form_sinusoidal_halves": (
        "Not learned: the first half are sines, the second half cosines.",
        "不是学来的：前一半是正弦，后一半是余弦。",
    ),
    "form_scaled": (
        "The number c = {c} is √{d}, the root of how many numbers the vector has; the family multiplies by it so that the embedding's numbers are not too small beside what is added later.",
        "c = {c} 就是 √{d}，即向量里数的个数的平方根；这一族乘以它，使词向量的数与后面加上的相比不至于太小。",
    ),
    "form_layer_norm": (
        "LayerNorm: μ is the mean of the vector's numbers and σ² their variance, so that the result has mean 0 and variance 1; ε is a tiny number that keeps the root from 0; γ and β (where there are any) are learned, one number for each place; ⊙ multiplies place by place.",
        "LayerNorm：μ 是各数的平均，σ² 是方差，结果的均值为 0、方差为 1；ε 是很小的数，使根号下不为 0；γ 和 β（若有）是学来的，每位一个数；⊙ 表示逐位相乘。",
    ),
    "form_rms_norm": (
        "RMSNorm: divided by the root of the mean of the squares; d is how many numbers the vector has, i counts them; ε is a tiny number that keeps the root from 0; γ (where there is one) is learned, one number for each place; ⊙ multiplies place by place.",
        "RMSNorm：除以平方平均数的平方根；d 是向量里数的个数，i 逐个数它们；ε 是很小的数，使根号下不为 0；γ（若有）是学来的，每位一个数；⊙ 表示逐位相乘。",
    ),
    "form_rms_norm_one": (
        "RMSNorm: divided by the root of the mean of the squares; d is how many numbers the vector has, i counts them; ε is a tiny number that keeps the root from 0; γ is learned, one number for each place, and is stored as the difference from 1; ⊙ multiplies place by place.",
        "RMSNorm：除以平方平均数的平方根；d 是向量里数的个数，i 逐个数它们；ε 是很小的数，使根号下不为 0；γ 是学来的，每位一个数，存的是与 1 的差；⊙ 表示逐位相乘。",
    ),
    "form_linear": (
        "A linear map W to another width.",
        "一个改变宽度的线性变换 W。",
    ),
    "form_first": (
        "This is the first layer: it is the embedding itself.",
        "这是第一层：就是词向量。",
    ),
    "form_as_it_is": (
        "Here it is the state itself: this family norms after attention.",
        "这里就是状态本身：这一族在注意力之后才归一化。",
    ),
    "form_alone": (
        "A linear map of its own; shown is this head's share of it.",
        "自己的线性变换，显示的是这个头的一份。",
    ),
    "form_fused_parts": (
        "One linear map makes query, key and value, one after the other; shown is this head's share.",
        "查询、键、值共用一个线性变换，依次排列，显示的是这个头的一份。",
    ),
    "form_fused_heads": (
        "One linear map makes query, key and value, head by head.",
        "查询、键、值共用一个线性变换，按头排列。",
    ),
    "form_fused_groups": (
        "One linear map makes all three, in groups of heads with one key and value.",
        "三者共用一个线性变换，几个头一组，共用键和值。",
    ),
    "form_start_of_share": (
        "The first part of the head's share of a wider map.",
        "取自一个更宽的变换中这个头那一份的前段。",
    ),
    "form_end_of_share": (
        "The last part of the head's share of a wider map.",
        "取自一个更宽的变换中这个头那一份的后段。",
    ),
    "form_through_smaller": (
        "Through a smaller vector first (multi-head latent attention), so W stands for two maps.",
        "先经过一个较小的向量（MLA），所以 W 代表两个变换。",
    ),
    "form_halves_all": (
        "Numbers i and i + {half} form a pair, for i from 0 to {half} − 1. All d = {d} numbers are turned.",
        "第 i 个数与第 i + {half} 个数成一对，i 从 0 到 {half} − 1。全部 d = {d} 个数都旋转。",
    ),
    "form_halves_first": (
        "Numbers i and i + {half} form a pair, for i from 0 to {half} − 1. Only the first d = {d} of {dim} numbers are turned, the others stay.",
        "第 i 个数与第 i + {half} 个数成一对，i 从 0 到 {half} − 1。{dim} 个数中只旋转前 d = {d} 个，其余不变。",
    ),
    "form_halves_last": (
        "Numbers i and i + {half} form a pair, for i from 0 to {half} − 1. Only the last d = {d} of {dim} numbers are turned, the others stay; i counts from number {start}.",
        "第 i 个数与第 i + {half} 个数成一对，i 从 0 到 {half} − 1。{dim} 个数中只旋转后 d = {d} 个，其余不变；i 从第 {start} 个数起算。",
    ),
    "form_neighbours_all": (
        "Neighbours form a pair: numbers 2i and 2i + 1, for i from 0 to {half} − 1. All d = {d} numbers are turned.",
        "相邻两个数成一对：第 2i 个与第 2i + 1 个，i 从 0 到 {half} − 1。全部 d = {d} 个数都旋转。",
    ),
    "form_neighbours_first": (
        "Neighbours form a pair: numbers 2i and 2i + 1, for i from 0 to {half} − 1. Only the first d = {d} of {dim} numbers are turned, the others stay.",
        "相邻两个数成一对：第 2i 个与第 2i + 1 个，i 从 0 到 {half} − 1。{dim} 个数中只旋转前 d = {d} 个，其余不变。",
    ),
    "form_neighbours_last": (
        "Neighbours form a pair: numbers 2i and 2i + 1, for i from 0 to {half} − 1. Only the last d = {d} of {dim} numbers are turned, the others stay; i counts from number {start}.",
        "相邻两个数成一对：第 2i 个与第 2i + 1 个，i 从 0 到 {half} − 1。{dim} 个数中只旋转后 d = {d} 个，其余不变；i 从第 {start} 个数起算。",
    ),
    "form_neighbours_sorted_all": (
        "Neighbours form a pair: numbers 2i and 2i + 1, for i from 0 to {half} − 1; afterwards the first of each pair stand in the first half, the second in the other. All d = {d} numbers are turned.",
        "相邻两个数成一对：第 2i 个与第 2i + 1 个，i 从 0 到 {half} − 1；之后每对的第一个排在前半，第二个排在后半。全部 d = {d} 个数都旋转。",
    ),
    "form_neighbours_sorted_first": (
        "Neighbours form a pair: numbers 2i and 2i + 1, for i from 0 to {half} − 1; afterwards the first of each pair stand in the first half, the second in the other. Only the first d = {d} of {dim} numbers are turned, the others stay.",
        "相邻两个数成一对：第 2i 个与第 2i + 1 个，i 从 0 到 {half} − 1；之后每对的第一个排在前半，第二个排在后半。{dim} 个数中只旋转前 d = {d} 个，其余不变。",
    ),
    "form_neighbours_sorted_last": (
        "Neighbours form a pair: numbers 2i and 2i + 1, for i from 0 to {half} − 1; afterwards the first of each pair stand in the first half, the second in the other. Only the last d = {d} of {dim} numbers are turned, the others stay; i counts from number {start}.",
        "相邻两个数成一对：第 2i 个与第 2i + 1 个，i 从 0 到 {half} − 1；之后每对的第一个排在前半，第二个排在后半。{dim} 个数中只旋转后 d = {d} 个，其余不变；i 从第 {start} 个数起算。",
    ),
    "turn_worked": (
        "The word's first pair, numbers {first} and {second}: {one} × {cos} − {other} × {sin} = {new_one} (number {first_after}); {other} × {cos} + {one} × {sin} = {new_other} (number {second_after}).",
        "以该词的第一对为例，即第 {first} 与第 {second} 个数：{one} × {cos} − {other} × {sin} = {new_one}（第 {first_after} 个）；{other} × {cos} + {one} × {sin} = {new_other}（第 {second_after} 个）。",
    ),
    "form_early": (
        "The query is divided by √d already here, so the scores need no division; d = {d}.",
        "在这里就除以 √d，分数便不用再除；d = {d}。",
    ),
    "form_by_base": (
        "t = {t} is the place, b = {base} a number of the model's, d = {d} how many numbers are turned; pair i is turned by θ_i, from fast (i = 0) to slow.",
        "t = {t} 是位置，b = {base} 是模型定的数，d = {d} 是要旋转的数的个数；第 i 对转过 θ_i，从快（i = 0）到慢。",
    ),
    "form_by_root": (
        "d = {d} is how many numbers a query has: divided by √{d}, that is times {c}.",
        "d = {d} 是查询里数的个数：除以 √{d}，即乘以 {c}。",
    ),
    "form_by_number": (
        "Times a number that this model sets itself, c = {c}.",
        "乘以这个模型自定的数 c = {c}。",
    ),
    "form_by_one": (
        "Nothing is divided here: the query was scaled before, or the family leaves it out.",
        "这里不除：查询已先缩放过，或这一族省去了。",
    ),
    "form_capped": (
        "c = {c}: no score can go beyond it in either direction.",
        "c = {c}：分数向两边都不会超过它。",
    ),
    "form_buckets": (
        "B is learned: near distances have a number of their own, far ones share (T5).",
        "B 是学来的：近的距离各有一个数，远的共用（T5）。",
    ),
    "form_alibi": (
        "m is the slope of this head (ALiBi). Written so that the word itself has 0: a number that is added to all scores changes no weight.",
        "m 是这个头的斜率（ALiBi）。写成词本身为 0：所有分数加上同一个数，权重不变。",
    ),
    "form_all": (
        "1: may be seen, 0: hidden. Here everything may be seen.",
        "1 看得见，0 看不见。这里全部可见。",
    ),
    "form_causal": (
        "1: may be seen, 0: hidden. The word itself and what stands before it may be seen.",
        "1 看得见，0 看不见。这里看得见该词自身及其之前的词元。",
    ),
    "form_causal_window": (
        "1: may be seen, 0: hidden. The word itself and a window before it may be seen.",
        "1 看得见，0 看不见。这里看得见该词自身及其之前的一个窗口。",
    ),
    "form_window": (
        "1: may be seen, 0: hidden. A window on both sides may be seen.",
        "1 看得见，0 看不见。这里看得见两侧的一个窗口。",
    ),
    "form_hidden": (
        "M is 0 where a token may be seen and −∞ where it is hidden; {count} are hidden here. e to the power of −∞ is 0, so they get no weight.",
        "看得见的词元 M 为 0，看不见的为 −∞，这里有 {count} 个看不见。e 的 −∞ 次幂是 0，所以它们没有权重。",
    ),
    "form_none_hidden": (
        "M is 0 where a token may be seen and −∞ where it is hidden. Nothing is hidden from this token, so the scores stay.",
        "看得见的词元 M 为 0，看不见的为 −∞。这个词元什么都看得见，所以分数不变。",
    ),
    "form_two": (
        "What was known so far, and f.",
        "已知的，加上 f。",
    ),
    "form_three": (
        "x, what attention wrote (y), and f: in this family both write side by side.",
        "x，注意力写入的 y，再加 f：这一族里两者并行写入。",
    ),
    "with_bias": (
        "b is a learned vector that is added.",
        "b 是学来的向量，直接加上。",
    ),
    "with_sink": (
        "e^z_∅ below the line belongs to no token (see the sink).",
        "分母里的 e^z_∅ 不属于任何词元（见“汇”）。",
    ),
    # Why each step is there
    "why_table_row": (
        "A model reads numbers, not words: each token w has a learned row of numbers e in the table E.",
        "模型读的是数，不是字：每个词元 w 在表 E 里有学来的一行数 e。",
    ),
    "why_position_row": (
        "Without it 我喜欢苹果 and 苹果喜欢我 would be the same to the model: p tells where the token stands.",
        "没有它，“我喜欢苹果”和“苹果喜欢我”对模型没有区别：p 说明词元站在哪里。",
    ),
    "why_segment_row": (
        "The model can be given two texts at once; g says to which one a token belongs. Here there is one text, so every token gets the same row of the table G.",
        "模型可以一次读两段文本，g 说明词元属于哪一段。这里只有一段，所以每个词元都加上表 G 的同一行。",
    ),
    "why_other_row": (
        "This family adds one more learned row n, the same for every token here.",
        "这一族再加上学来的一行 n，这里每个词元都相同。",
    ),
    "why_added": (
        "Adding puts what the token is and where it stands into one vector x.",
        "相加之后，词元是什么、站在哪里，都在同一个向量 x 里。",
    ),
    "why_embedded": (
        "Before the first layer the numbers are brought to the size or the width that the layers work with.",
        "进入第一层之前，先把数调到各层所用的大小或宽度。",
    ),
    "why_state": (
        "x is all that the layer knows of this word: the embedding, and what every layer before has added to it.",
        "x 是这一层对该词所知的全部：词向量，加上此前各层加上去的东西。",
    ),
    "why_read": (
        "u is what query, key and value are made from. A norm keeps its numbers in one range, whatever the layers before have piled up.",
        "查询、键、值都由 u 得到。归一化使它的数保持在同一范围，不管前面各层加了多少。",
    ),
    "why_query": (
        "The query says what this word looks for: learned weights W_Q turn the {width} numbers of u into {d}.",
        "查询说明这个词在找什么：学到的权重 W_Q 把 u 的 {width} 个数变成 {d} 个。",
    ),
    "why_key": (
        "A key says what a word has to offer to those who look. Every token j has one, made by the same W_K.",
        "键说明一个词能供别的词查找的东西。每个词元 j 都有一个，由同一个 W_K 得到。",
    ),
    "why_value": (
        "A value is what a word passes on to those who look at it. It need not resemble its key.",
        "值是一个词交给来看它的词的内容，不必与它的键相像。",
    ),
    "why_normed": (
        "The norm keeps the scores from growing with the length of queries and keys.",
        "归一化使分数不随查询和键的长度而增大。",
    ),
    "why_scaled_early": (
        "Dividing keeps the scores in a range in which the softmax can still learn.",
        "先除一下，分数就留在 softmax 还学得动的范围里。",
    ),
    "why_turned": (
        "Turning writes the place into the numbers: the product of a turned query and a turned key depends on how far apart the two words stand, not on where they stand. A pair of numbers is a point in a plane, turned round the origin by θ; its length stays. The turned numbers take the place of the old ones.",
        "旋转把位置写进数里：旋转后的查询与键相乘，结果取决于两个词相隔多远，而不取决于它们站在哪里。一对数是平面上的一点，绕原点转过 θ，长度不变。转后的数代替原来的数。",
    ),
    "why_angles": (
        "The next step turns the query by angles that grow with the place t, each pair of numbers by its own.",
        "下一步要把查询旋转一些角度，位置 t 越大转得越多，每对数各有自己的角度。",
    ),
    "why_scores": (
        "A score says how well what the word looks for fits what token j offers: number times number, added up.",
        "分数说明这个词要找的与词元 j 所能供的有多合：逐位相乘，再相加。",
    ),
    "why_scaled": (
        "A sum of more products spreads wider; divided by the root of their number, the scores keep one size, and the softmax stays soft enough to learn.",
        "相乘的项越多，和散得越开；除以项数的平方根，分数大小就不变，softmax 也不会硬得学不动。",
    ),
    "why_softcap": (
        "A soft limit keeps single scores from drowning all others (tanh bends large numbers towards 1).",
        "软上限使个别分数不至于压倒其余（tanh 把大的数压向 1）。",
    ),
    "why_bias_row": (
        "This family puts the place into the scores: a number b for each distance between the two words.",
        "这一族把位置放进分数里：两个词的每个距离有一个数 b。",
    ),
    "why_biased": (
        "So far as the words stand apart, the score is raised or lowered.",
        "两个词相隔多远，分数就相应加减多少。",
    ),
    "why_mask": (
        "The mask M says which tokens this one may look at. A model that writes from left to right must not see what comes later.",
        "掩码 M 说明这个词元可以看哪些词元。从左往右写的模型，不许看后面的。",
    ),
    "why_masked": (
        "Hiding happens in the scores, before they become shares: what is hidden must take no share.",
        "隐藏要在分数变成份额之前做：看不见的不能占份额。",
    ),
    "why_weights": (
        "The softmax turns scores into shares: e^z makes each positive and large ones larger still, and dividing by the sum makes them add up to 1.",
        "softmax 把分数变成份额：取 e 的幂都成正数，大的更大；再除以总和，合计为 1。",
    ),
    "why_sink": (
        "What is left of 1: a share that this head gives to no token, if there is nothing to look at.",
        "1 减去其余：没有什么可看时，这个头不给任何词元的份额。",
    ),
    "why_mixed": (
        "The word takes from every token's value v by its share a: this is what the head found for it.",
        "这个词按份额 a 从每个词元的值 v 里各取一份：这就是这个头为它找到的。",
    ),
    "why_heads": (
        "Every head has looked for something of its own; what they found stands side by side, H heads counted from 0.",
        "每个头找的东西各不相同；找到的并排放在一起，共 H 个头，从 0 数起。",
    ),
    "why_written": (
        "Learned weights W_O mix what the heads found and bring it to the width of the state, so that it can be added.",
        "学到的权重 W_O 把各头找到的混合起来，并变成状态的宽度，这样才能相加。",
    ),
    "why_written_normed": (
        "The norm sets how loud attention may be beside the state.",
        "归一化决定注意力与状态相比有多响。",
    ),
    "why_residual": (
        "Adding keeps what was known and only puts something on top, so that nothing is lost on the way through many layers (h is the sum).",
        "相加保留已知的，只在上面添东西，这样走过许多层也不会丢失（h 是和）。",
    ),
    "why_residual_normed": (
        "The feed-forward network reads the sum with its numbers in one range again.",
        "归一化后，数又回到同一范围，供前馈网络读取。",
    ),
    "why_fed": (
        "Attention moves between words; the feed-forward network then works on each word by itself. Its output f is taken as the model gives it and not opened here.",
        "注意力在词与词之间传递；前馈网络随后在每个词上单独计算。它的输出 f 原样取自模型，这里不打开。",
    ),
    "why_summed": (
        "Again a sum, so that nothing is lost (r).",
        "又是相加，什么也不丢（r）。",
    ),
    "why_next": (
        "x′ is what the next layer is given: it starts again from the state.",
        "x′ 就是下一层得到的状态，一切从那里再来一遍。",
    ),
    "missing_other_numbers": ("the formula gives other numbers", "按公式得到的数不同"),
    "missing_not_held": ("the model never holds this number", "模型从不单独持有这个数"),
    "missing_no_lookup": ("no lookup in the table of embeddings was seen", "没有看到查词向量表的一步"),
    "missing_no_first_state": ("what goes into the first block is not seen", "看不到进入第一层的状态"),
    "missing_other_sum": ("no sum of the tensors seen gives it", "看到的张量怎么相加都得不到它"),
    "missing_no_input": ("what goes into attention is not seen", "看不到进入注意力的张量"),
    "missing_other_norm": ("it is no LayerNorm and no RMSNorm of the state", "不是状态的 LayerNorm 或 RMSNorm"),
    "missing_other_projection": ("it is put together from several maps", "由几个变换的结果拼成"),
    "missing_other_angles": (
        "the angles are stretched for longer texts (yarn and the like)",
        "角度为长文本作了拉伸（yarn 一类）",
    ),
    "missing_other_bias": ("the bias is neither T5's nor ALiBi's", "偏置既不是 T5 的也不是 ALiBi 的"),
    "missing_other_mask": ("the mask is neither full, causal nor a window", "掩码不是全可见、因果或窗口"),
    "missing_fused_product": (
        "computed within one product, even with eager attention",
        "在一次乘法里一起算出，eager 注意力也不例外",
    ),
    "missing_gate_before": ("a gate stands between the heads and W_O", "头与 W_O 之间有一个门"),
    "missing_parallel": (
        "attention and the feed-forward network are added at once, so this sum is never held",
        "注意力与前馈网络一次相加，这个和从不单独出现",
    ),
    "gap_head": ("gap", "差"),
    "step_head": ("step", "步骤"),
    "made_note": (
        "This page is one file. It loads and sends nothing. The command below computes every number on it again.",
        "本页是单个文件，不加载也不发送任何内容；用下面的命令可重新算出本页的每个数。",
    ),
    "made_model": ("model", "模型"),
    "made_layer": ("layer, head", "层，头"),
    "made_command": ("command", "命令"),
}
