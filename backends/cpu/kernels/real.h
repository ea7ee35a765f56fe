/* real.h: the arithmetic of a *_body.h file, which is included once for fp32 and once for fp64; those that
 * multiply matrices once more for products of bf16, whose sums are fp32. Before: REAL_IS_F64 is 0 or 1,
 * PRODUCTS_OF_BF16 is 1 (with REAL_IS_F64 0), 0 or not there. After: REAL, VEC, VEC_MEMORY, BITS (integers as
 * wide), NAME(x), R(constant), and the names below, each meaning the version of its arithmetic. Included
 * again, it redefines them.
 *
 * OPERAND is what packed operands of products are made of, a step of the tile along k: a number, or for bf16,
 * where the machine has an instruction for it, a pair of them (PER_OPERAND), k even in the low half. */
#ifndef PRODUCTS_OF_BF16
#define PRODUCTS_OF_BF16 0
#endif
#undef REAL
#undef VEC
#undef VEC_MEMORY
#undef VEC_FMA
#undef BITS
#undef VL
#undef NAME
#undef R
#undef REAL_DTYPE
#undef REAL_NAME
#undef OPERAND
#undef OPERAND_DTYPE
#undef PER_OPERAND
#undef VEC_DOT
#if REAL_IS_F64
#define REAL double
#define VEC vec_f64
#define VEC_MEMORY vec_f64_memory
#define VEC_FMA vec_fma_f64
#define BITS vec_i64
#define REAL_NAME(name) name##_f64
#define REAL_DTYPE SBP_F64
#else
#define REAL float
#define VEC vec_f32
#define VEC_MEMORY vec_f32_memory
#define VEC_FMA vec_fma_f32
#define BITS vec_i32
#define REAL_NAME(name) name##_f32
#define REAL_DTYPE SBP_F32
#endif
#if PRODUCTS_OF_BF16
#define NAME(name) name##_bf16
#define OPERAND_DTYPE SBP_BF16
#else
#define NAME(name) REAL_NAME(name)
#define OPERAND_DTYPE REAL_DTYPE
#endif
#if PRODUCTS_OF_BF16 && CPU_HAS_DOT
#define OPERAND uint32_t
#define PER_OPERAND 2
#define VEC_DOT vec_dot_bf16
#else
#define OPERAND REAL
#define PER_OPERAND 1
#define VEC_DOT VEC_FMA
#endif
#define VL ((int64_t)(CPU_VECTOR_BYTES / sizeof(REAL))) /* elements of a vector */
#define R(x) ((REAL)(x))

#ifndef SBP_CPU_REAL_NAMES
#define SBP_CPU_REAL_NAMES
/* SBP_CROSS of a path that each arithmetic has (ir/base/census.h). */
#define REAL_CROSS(name) sbp_census_cross(NAME(SBP_PATH_##name))
#define REAL_CROSS_IF(condition, name) ((condition) ? REAL_CROSS(name) : (void)0)
#define REAL_CROSS_EITHER(condition, name, other)                                                            \
    sbp_census_cross((condition) ? NAME(SBP_PATH_##name) : NAME(SBP_PATH_##other))
#define real_add_rows NAME(add_rows)
#define real_also_read NAME(also_read)
#define real_backward NAME(backward)
#define real_backward_block NAME(backward_block)
#define real_backward_item NAME(backward_item)
#define real_backward_tile NAME(backward_tile)
#define real_bf16_at NAME(bf16_at)
#define real_bf16_key NAME(bf16_key)
#define real_bf16_row NAME(bf16_row)
#define real_chain_any NAME(chain_any)
#define real_chain_steps NAME(chain_steps)
#define real_chains NAME(chains)
#define real_clear_partials NAME(clear_partials)
#define real_collect_item NAME(collect_item)
#define real_column_exp NAME(column_exp)
#define real_column_max NAME(column_max)
#define real_combine NAME(combine)
#define real_combine_vectors NAME(combine_vectors)
#define real_conv_add NAME(conv_add)
#define real_conv_back_item NAME(conv_back_item)
#define real_conv_begin NAME(conv_begin)
#define real_conv_gather NAME(conv_gather)
#define real_conv_item NAME(conv_item)
#define real_conv_line NAME(conv_line)
#define real_conv_load_dy NAME(conv_load_dy)
#define real_conv_state_item NAME(conv_state_item)
#define real_conv_strip NAME(conv_strip)
#define real_conv_weight_gradients NAME(conv_weight_gradients)
#define real_conv_weights NAME(conv_weights)
#define real_b_at NAME(b_at)
#define real_decode_panel NAME(decode_panel)
#define real_delta_add NAME(delta_add)
#define real_delta_advance NAME(delta_advance)
#define real_delta_again NAME(delta_again)
#define real_delta_at NAME(delta_at)
#define real_delta_back_block NAME(delta_back_block)
#define real_delta_back_item NAME(delta_back_item)
#define real_delta_backward NAME(delta_backward)
#define real_delta_backward_take NAME(delta_backward_take)
#define real_delta_by_lower NAME(delta_by_lower)
#define real_delta_by_upper NAME(delta_by_upper)
#define real_delta_decayed NAME(delta_decayed)
#define real_delta_decays NAME(delta_decays)
#define real_delta_dot NAME(delta_dot)
#define real_delta_dstate_behind NAME(delta_dstate_behind)
#define real_delta_dstate_item NAME(delta_dstate_item)
#define real_delta_find_b NAME(delta_find_b)
#define real_delta_find_d NAME(delta_find_d)
#define real_delta_find_decays NAME(delta_find_decays)
#define real_delta_find_dk NAME(delta_find_dk)
#define real_delta_find_dr NAME(delta_find_dr)
#define real_delta_find_dstate NAME(delta_find_dstate)
#define real_delta_find_dv NAME(delta_find_dv)
#define real_delta_find_o NAME(delta_find_o)
#define real_delta_find_of_states NAME(delta_find_of_states)
#define real_delta_find_rows NAME(delta_find_rows)
#define real_delta_find_scores NAME(delta_find_scores)
#define real_delta_forward NAME(delta_forward)
#define real_delta_forward_take NAME(delta_forward_take)
#define real_delta_item NAME(delta_item)
#define real_delta_keep_item NAME(delta_keep_item)
#define real_delta_load NAME(delta_load)
#define real_delta_load_key_head NAME(delta_load_key_head)
#define real_delta_load_state NAME(delta_load_state)
#define real_delta_lower NAME(delta_lower)
#define real_delta_minus_a NAME(delta_minus_a)
#define real_delta_number NAME(delta_number)
#define real_delta_rest NAME(delta_rest)
#define real_delta_retreat NAME(delta_retreat)
#define real_delta_rows NAME(delta_rows)
#define real_delta_scale NAME(delta_scale)
#define real_delta_shape NAME(delta_shape)
#define real_delta_shape_of NAME(delta_shape_of)
#define real_delta_solve NAME(delta_solve)
#define real_delta_solve_back NAME(delta_solve_back)
#define real_delta_store NAME(delta_store)
#define real_delta_store_columns NAME(delta_store_columns)
#define real_delta_store_state NAME(delta_store_state)
#define real_delta_strip_end NAME(delta_strip_end)
#define real_delta_take NAME(delta_take)
#define real_delta_transpose NAME(delta_transpose)
#define real_element NAME(element)
#define real_exp REAL_NAME(sbp_exp)
#define real_fetch_some NAME(fetch_some)
#define real_few_item NAME(few_item)
#define real_few_panel NAME(few_panel)
#define real_find_runs NAME(find_runs)
#define real_find_scale NAME(find_scale)
#define real_fitting NAME(fitting)
#define real_packed_space NAME(packed_space)
#define real_forward NAME(forward)
#define real_forward_document NAME(forward_document)
#define real_forward_item NAME(forward_item)
#define real_forward_space NAME(forward_space)
#define real_forward_tile NAME(forward_tile)
#define real_gathered NAME(gathered)
#define real_gemm NAME(gemm)
#define real_gemm_begin NAME(gemm_begin)
#define real_gemm_compute NAME(gemm_compute)
#define real_gemm_cross NAME(gemm_cross)
#define real_gemm_pack NAME(gemm_pack)
#define real_gemm_store NAME(gemm_store)
#define real_hide NAME(hide)
#define real_integer_loops NAME(integer_loops)
#define real_is_operand NAME(is_operand)
#define real_item_a NAME(item_a)
#define real_item_rows NAME(item_rows)
#define real_key_columns NAME(key_columns)
#define real_key_operand NAME(key_operand)
#define real_key_rows NAME(key_rows)
#define real_lane_limits NAME(lane_limits)
#define real_lane_operand NAME(lane_operand)
#define real_load_block NAME(load_block)
#define real_load_lanes NAME(load_lanes)
#define real_load_row REAL_NAME(load_row)
#define real_lookup NAME(lookup)
#define real_log REAL_NAME(sbp_log)
#define real_map_loops NAME(map_loops)
#define real_mask NAME(mask)
#define real_nearest NAME(nearest)
#define real_own_place NAME(own_place)
#define real_pack_a_rows NAME(pack_a_rows)
#define real_pack_b NAME(pack_b)
#define real_panel_width NAME(panel_width)
#define real_partial_at NAME(partial_at)
#define real_piece_ahead NAME(piece_ahead)
#define real_power_below NAME(power_below)
#define real_power_of_2 NAME(power_of_2)
#define real_power_of_fraction NAME(power_of_fraction)
#define real_reduce NAME(reduce)
#define real_reduce_lanes NAME(reduce_lanes)
#define real_reduction_start NAME(reduction_start)
#define real_row NAME(row)
#define real_rows_item NAME(rows_item)
#define real_rows_run NAME(rows_run)
#define real_run_backward NAME(run_backward)
#define real_run_few NAME(run_few)
#define real_run_forward NAME(run_forward)
#define real_run_gemm NAME(run_gemm)
#define real_run_limits NAME(run_limits)
#define real_run_list NAME(run_list)
#define real_run_pieces NAME(run_pieces)
#define real_run_whole NAME(run_whole)
#define real_runs NAME(runs)
#define real_score NAME(score)
#define real_score_gradients NAME(score_gradients)
#define real_score_scale NAME(score_scale)
#define real_shape_heads NAME(shape_heads)
#define real_shape_rows NAME(shape_rows)
#define real_soft_score_gradients NAME(soft_score_gradients)
#define real_soften NAME(soften)
#define real_splat NAME(splat)
#define real_step_expand NAME(step_expand)
#define real_step_integer NAME(step_integer)
#define real_step_lookup NAME(step_lookup)
#define real_step_index NAME(step_index)
#define real_step_length NAME(step_length)
#define real_step_load NAME(step_load)
#define real_step_map NAME(step_map)
#define real_step_partial NAME(step_partial)
#define real_random_word NAME(random_word)
#define real_step_random NAME(step_random)
#define real_step_reduce NAME(step_reduce)
#define real_step_round NAME(step_round)
#define real_step_store NAME(step_store)
#define real_steps NAME(steps)
#define real_store_dq NAME(store_dq)
#define real_store_forward NAME(store_forward)
#define real_store_row REAL_NAME(store_row)
#define real_take NAME(take)
#define real_take_forward_space NAME(take_forward_space)
#define real_take_operands NAME(take_operands)
#define real_tanh REAL_NAME(sbp_tanh)
#define real_tile1 NAME(tile1)
#define real_tile2 NAME(tile2)
#define real_tile3 NAME(tile3)
#define real_tile_any NAME(tile_any)
#define real_tile_matrix NAME(tile_matrix)
#define real_tile_operand NAME(tile_operand)
#define real_tiles NAME(tiles)
#define real_transpose NAME(transpose)
#define real_transpose_square REAL_NAME(transpose_square)
#define real_want_next NAME(want_next)
#define real_work_part NAME(work_part)
#endif
